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

/// Options of the groups of a family. An option that is left out has the backend's default.
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

/// The parallelism of a training job, in the terms of Megatron's programs. Dense layers use a grid of tp, gtp, cp, dp
/// and pp; experts use a grid of etp, egtp, ep, edp and pp over the same ranks.
struct MeshConfig {
  int world_size = 0;   ///< ranks of the mesh; 0: computed from the other sizes, which requires dp
  int rank_offset = 0;  ///< the job's rank that is the mesh's first
  int tp = 1;           ///< tensor parallel
  int cp = 1;           ///< context parallel
  int pp = 1;           ///< pipeline parallel
  int dp = 0;           ///< data parallel; 0: the remaining ranks
  int gtp = 1;          ///< ranks that share weights of a tensor-parallel part, and rebuild them
  int ep = 1;           ///< expert parallel
  int etp = 0;          ///< tensor parallel within experts; 0: same as tp
  int egtp = 1;         ///< same as gtp, for experts
  /// The axes, beginning with the one whose ranks are adjacent. Axes of size 1 may be left out; gtp, if left out,
  /// follows tp.
  std::string order = "tp-cp-ep-dp-pp";
  std::vector<int> hierarchical_cp = {};                 ///< sizes of the levels of cp, the innermost first
  bool hybrid_cp = false;                                ///< groups of 2, 4, ... neighbors of dp and cp
  int optimizer_instances = 1;                           ///< replicas of the distributed optimizer
  std::vector<int> embedding_stages = {0, -1};           ///< of the pipeline; -1 is the last
  std::vector<int> position_embedding_stages = {0};      ///< the same
  bool all_gather_group = false;                         ///< a second group of dp and cp, for all_gathers
  bool gloo_groups = false;                              ///< a second set of data-parallel groups, for host tensors
  std::map<std::string, MeshGroupOptions> options = {};  ///< by the key of the families
};

/// Parses "tp=8,pp=8,cp=2,ep=16", with the names of the fields of MeshConfig; lists have the form
/// "hierarchical_cp=2x4". Fields that are not given are taken from `defaults`. Fails with kInvalidArgument, which
/// names a field that is unknown, repeated or not a number, or a world_size that differs from that of `defaults`.
Result<MeshConfig> parse_mesh_config(std::string_view text, MeshConfig defaults = {});

/// Groups of one kind: each rank is in one of them, or in none.
struct MeshFamily {
  std::string name;  ///< "dp_cp"; unique in a plan
  std::string key;   ///< of the options of its groups; several families may share one
  int group_size = 0;
  int groups = 0;
  std::string description;  ///< "data parallel with context parallel"
};

/// One group: its ranks, ascending, and the families that it belongs to. Families with equal ranks and options share
/// one group.
struct MeshGroup {
  std::vector<int> families;  ///< indices into MeshPlan::families()
  std::vector<Rank> ranks;
  MeshGroupOptions options;
  bool operator==(const MeshGroup&) const = default;
};

/// All groups of a mesh: a value, whose groups are computed on request. Plans are equal on all ranks if their hashes
/// are.
class MeshPlan {
 public:
  /// Creates the plan of Megatron's families. Fails with kInvalidArgument, which says which number is invalid and
  /// why.
  static Result<MeshPlan> create(MeshConfig config);
  /// Creates a family for each element of `families`, which are sets of axes. The ranks of the first axis are
  /// adjacent.
  static Result<MeshPlan> of_axes(std::span<const MeshAxis> axes, std::span<const std::vector<std::string>> families,
                                  int rank_offset = 0);

  int world_size() const;
  int rank_offset() const;
  std::span<const MeshFamily> families() const;
  /// Fails with kNotFound, which names the nearest family.
  Result<int> family(std::string_view name) const;

  /// Returns the ranks, ascending, of the family's group that contains `rank`; empty if it is in none. Cost: the size
  /// of the group. REQUIRES: `rank` is one of the mesh's.
  std::vector<Rank> ranks_of(int family, Rank rank) const;
  /// Returns the groups of `rank`, one for each distinct set of ranks and options, in the order of the families.
  /// Cost: their sizes.
  std::vector<MeshGroup> groups_of(Rank rank) const;
  /// Returns all groups of a family, in Megatron's order.
  std::vector<std::vector<Rank>> all_groups(int family) const;
  /// Returns the position of `rank` along an axis ("tp", "ep", ...), 0 for axes of size 1. Fails with kNotFound for
  /// an unknown axis.
  Result<int> coordinate(std::string_view axis, Rank rank) const;
  /// The axes of the dense grid, or of the grid of experts, beginning with the one whose ranks are adjacent.
  std::span<const MeshAxis> axes() const;
  std::span<const MeshAxis> expert_axes() const;

  /// Everything that determines the groups, as text: "world_size=16 tp=2 ...".
  const std::string& text() const;
  /// Hash of text().
  std::uint64_t hash() const;

  const std::shared_ptr<const mesh::Plan>& state() const { return plan_; }

 private:
  explicit MeshPlan(std::shared_ptr<const mesh::Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const mesh::Plan> plan_;
};

/// The outcome of a requested option.
enum class MeshOptionFate : std::uint8_t {
  kApplied,
  kTranslated,     ///< to the backend's equivalent
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
  std::string name = "mesh";             ///< prefix of the groups' names: "mesh.tp"
  std::optional<Duration> timeout = {};  ///< for creation and for the groups' calls; absent: the communicator's
  bool strict = false;                   ///< options that have no effect are an error
};

/// The groups of a plan, connected.
///
/// create() is one collective step, whatever the number of groups: ranks compare their plans, exchange what is needed
/// to reach each other, and connect. A group is created when it is first requested, without involving other ranks.
/// Several meshes may exist at once. A handle: copies refer to the same mesh; groups outlive it. Thread-safe.
class Mesh {
 public:
  /// Connects the groups. Collective over `communicator`, which is neither closed nor used for anything else. The
  /// communicator has either one rank for each rank of the plan, numbered from the plan's rank_offset, or all ranks
  /// of the job; ranks outside the mesh then get a mesh without groups. kMismatch shows the difference between the
  /// plans of two ranks.
  [[nodiscard]] static Result<Mesh> create(const MeshPlan& plan, Communicator& communicator, MeshOptions options = {});

  /// For a rank that cannot determine its plan: takes part in the create() of the other ranks, which fails there with
  /// `why` at once. Collective.
  [[nodiscard]] static Status decline(Communicator& communicator, std::string_view why, MeshOptions options = {});

  const MeshPlan& plan() const;
  /// This rank, in the plan's numbering.
  Rank rank() const;
  /// False on ranks outside the mesh.
  bool has_groups() const;
  /// Returns this rank's group of the family, in which ranks are numbered in ascending order; nullopt if it is in
  /// none. Families with the same ranks and options share one group. Fails with kNotFound for an unknown family.
  [[nodiscard]] Result<std::optional<Communicator>> group(std::string_view family) const;
  /// The outcome of each option.
  const std::vector<MeshOptionReport>& report() const;
  /// Bytes of the window that contains this rank's groups: address space, whose pages use memory only once they are
  /// touched.
  std::size_t window_bytes() const;
  /// Closes all groups that were created. Idempotent.
  void close();

 private:
  class State;
  explicit Mesh(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace accord
