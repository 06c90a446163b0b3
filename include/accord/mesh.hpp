#pragma once
// Process-group meshes: the parallelism of a job in numbers, and every group of ranks that follows from it.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord {

namespace mesh {
class Plan;
}

/// A named axis of a grid of ranks.
struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// What may be asked for of the groups of a family; what is left out is the backend's.
struct MeshGroupOptions {
  std::optional<bool> is_high_priority_stream = {};
  std::optional<int> cga_cluster_size = {};
  std::optional<int> max_ctas = {};
  std::optional<int> min_ctas = {};
  std::optional<std::string> net_name = {};  ///< "IB" or "Socket"
  std::optional<double> timeout_seconds = {};
  std::optional<std::string> backend = {};
  bool operator==(const MeshGroupOptions&) const = default;
};

/// The parallelism of a training job, as Megatron's programs say it. Dense layers lie on a grid of tp, gtp, cp, dp and pp; experts on one of
/// etp, egtp, ep, edp and pp over the same ranks.
struct MeshConfig {
  int world_size = 0;   ///< ranks of the mesh; 0: as many as the other sizes say, which needs dp
  int rank_offset = 0;  ///< the job's rank that is the mesh's first
  int tp = 1;           ///< tensor parallel
  int cp = 1;           ///< context parallel
  int pp = 1;           ///< pipeline parallel
  int dp = 0;           ///< data parallel; 0: what is left of the ranks
  int gtp = 1;          ///< ranks that share weights of a tensor-parallel part, and rebuild them
  int ep = 1;           ///< expert parallel
  int etp = 0;          ///< tensor parallel inside of experts; 0: as tp
  int egtp = 1;         ///< as gtp, of experts
  /// The axes, the one whose ranks lie next to each other first. Axes of size 1 may be left out; gtp comes behind tp where it is.
  std::string order = "tp-cp-ep-dp-pp";
  std::vector<int> hierarchical_cp = {};                 ///< sizes of the levels of cp, the innermost first
  bool hybrid_cp = false;                                ///< groups of 2, 4, ... neighbours of dp and cp
  int optimizer_instances = 1;                           ///< replicas of the distributed optimizer
  std::vector<int> embedding_stages = {0, -1};           ///< of the pipeline, -1 is the last
  std::vector<int> position_embedding_stages = {0};      ///< the same
  bool all_gather_group = false;                         ///< a second group of dp and cp, for all_gathers
  bool gloo_groups = false;                              ///< the data-parallel ones once more, for tensors of the host
  std::map<std::string, MeshGroupOptions> options = {};  ///< by the key of the families
};

/// Reads "tp=8,pp=8,cp=2,ep=16", with the names of the fields of MeshConfig; lists as "hierarchical_cp=2x4". What is not said is as in
/// `defaults`. kInvalidArgument names what is unknown, said twice, no number, or another world_size than that of
/// `defaults`.
Result<MeshConfig> parse_mesh_config(std::string_view text, MeshConfig defaults = {});

/// Groups of one kind: each rank is in one of them, or in none.
struct MeshFamily {
  std::string name;  ///< "dp_cp", one in a plan
  std::string key;   ///< of the options of its groups; several families may have one
  int group_size = 0;
  int groups = 0;
  std::string description;  ///< "data parallel with context parallel"
};

/// One group: the ranks in it, ascending, and the families whose group it is. Families with equal ranks and options share one.
struct MeshGroup {
  std::vector<int> families;  ///< indices into MeshPlan::families()
  std::vector<Rank> ranks;
  MeshGroupOptions options;
  bool operator==(const MeshGroup&) const = default;
};

/// All groups of a mesh: a value, computed when they are asked for. Equal on all ranks if their hashes are.
class MeshPlan {
 public:
  /// Megatron's families. kInvalidArgument says which number cannot be, and why.
  static Result<MeshPlan> create(MeshConfig config);
  /// A family for each of `families`, which are sets of axes; the first axis is the one whose ranks lie next to each other.
  static Result<MeshPlan> of_axes(std::span<const MeshAxis> axes, std::span<const std::vector<std::string>> families,
                                  int rank_offset = 0);

  int world_size() const;
  int rank_offset() const;
  std::span<const MeshFamily> families() const;
  /// kNotFound with the nearest name.
  Result<int> family(std::string_view name) const;

  /// The ranks of the family's group that `rank` is in, ascending; empty if it is in none. Cost: the size of the group. REQUIRES: `rank` is one
  /// of the mesh's.
  std::vector<Rank> ranks_of(int family, Rank rank) const;
  /// The groups of `rank`, one for each distinct set of ranks and options, in the order of the families. Cost: their sizes.
  std::vector<MeshGroup> groups_of(Rank rank) const;
  /// All groups of a family, in Megatron's order.
  std::vector<std::vector<Rank>> all_groups(int family) const;
  /// Position of `rank` along an axis ("tp", "ep", ...), 0 for axes of size 1. kNotFound.
  Result<int> coordinate(std::string_view axis, Rank rank) const;
  /// The axes of the dense grid, or of that of the experts, the one whose ranks lie next to each other first.
  std::span<const MeshAxis> axes() const;
  std::span<const MeshAxis> expert_axes() const;

  /// All that decides the groups, in words that name it: "world_size=16 tp=2 ...".
  const std::string& text() const;
  /// Of text().
  std::uint64_t hash() const;

  const std::shared_ptr<const mesh::Plan>& state() const { return plan_; }

 private:
  explicit MeshPlan(std::shared_ptr<const mesh::Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const mesh::Plan> plan_;
};

/// What became of an option that was asked for.
enum class MeshOptionFate : std::uint8_t {
  kApplied,
  kTranslated,     ///< to what the backend has in its place
  kNotApplicable,  ///< nothing here that it could change
};
std::string_view to_string(MeshOptionFate fate);

struct MeshOptionReport {
  std::string key;  ///< of the families
  std::string option;
  std::string value;
  MeshOptionFate fate = MeshOptionFate::kApplied;
  std::string why;
};

struct MeshOptions {
  std::string name = "mesh";             ///< of the groups: "mesh.tp"
  std::optional<Duration> timeout = {};  ///< of creation and of the groups' calls; the communicator's
  bool strict = false;                   ///< options that change nothing are an error
};

/// The groups of a plan, connected.
///
/// create() is one collective step, whatever the number of groups: ranks compare their plans, exchange what is needed to reach each other and connect.
/// A group is made when it is first asked for, which needs no other rank. Several meshes may be there at once. A handle: copies refer
/// to the same mesh; groups go on when it goes. Thread-safe.
class Mesh {
 public:
  /// Collective over `communicator`, which is neither closed nor otherwise used. It has a rank for each of the plan's, whose numbers then begin at
  /// the plan's rank_offset, or all ranks of the job, of which those beyond the mesh get one without groups. kMismatch shows what is
  /// different in the plans of two ranks.
  [[nodiscard]] static Result<Mesh> create(const MeshPlan& plan, Communicator& communicator, MeshOptions options = {});

  /// For a rank that cannot say its plan: takes part in create() of the others, which fails there with `why` at once. Collective.
  [[nodiscard]] static Status decline(Communicator& communicator, std::string_view why, MeshOptions options = {});

  const MeshPlan& plan() const;
  /// This rank, as the plan numbers it.
  Rank rank() const;
  /// False on ranks beyond the mesh.
  bool has_groups() const;
  /// The family's group that this rank is in, of which its ranks are numbered in ascending order; nullopt if it is in none. Families with the same
  /// ranks and options share one. kNotFound.
  [[nodiscard]] Result<std::optional<Communicator>> group(std::string_view family) const;
  /// What became of each option.
  const std::vector<MeshOptionReport>& report() const;
  /// Of the window that this rank's groups lie in: address space, of which pages cost memory once they are touched.
  std::size_t window_bytes() const;
  /// Closes all groups that were made. Idempotent.
  void close();

 private:
  class State;
  explicit Mesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
