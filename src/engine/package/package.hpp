#pragma once
// An engine package on disk: manifest, graph, weights in granules. docs/engine-format.md writes it down.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/engine.hpp"
#include "accord/status.hpp"
#include "engine/graph/graph.hpp"
#include "kernels/linear/format.hpp"

namespace accord::engine {

/// How a weight may be divided among the ranks of a group.
struct Sharding {
  std::string group;      ///< "tp"
  int dim = 0;            ///< of the tensor's shape; the file holds it granule after granule along this one
  std::int64_t unit = 1;  ///< elements of that dimension that stay together (a head)
  /// So many units go to one rank as long as there are ranks enough for no more (query heads of one key head); with more ranks
  /// they are spread over several.
  std::int64_t together = 1;
  bool copies = false;  ///< with more ranks than units, several ranks have the same one (key heads)
  bool operator==(const Sharding&) const = default;
};

/// A matrix, or the matrices of experts or of a convolution's groups, that lie in the file as products read them
/// (kernels/linear/format.hpp), not row-major.
struct Packing {
  kernels::PackedFormat format;
  bool transposed = false;  ///< the tensor is [in, out]; else it is [out, in], or [experts, out, in]
  std::int64_t groups =
      0;  ///< of a convolution, [out, in, ..], that is packed as [groups, out / groups, .. * in]; else 0
  std::optional<double> error;  ///< what quantizing did: root of sum (packed - given)^2 / sum given^2
};

/// One weight as the manifest describes it. A tensor with a sharding lies in the file as its units one after the other
/// and has one granule for each: a unit is a contiguous row-major block of the tensor's shape with `dim` cut to `unit`, or that
/// block packed (expert by expert); the last unit may be shorter (packed, zeros fill it up). Experts that are divided among the ranks
/// have a unit each.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::optional<Sharding> sharding;
  std::optional<Packing> packing;   ///< none: row-major
  int file = 0;                     ///< index into Manifest::weight_files
  std::uint64_t offset = 0;         ///< of its first byte in the file
  std::uint64_t granule_bytes = 0;  ///< the last one may be shorter
  std::vector<std::uint64_t> granule_xxh3;

  /// In the file.
  std::uint64_t bytes() const;
  /// 1 if it is not divided.
  std::int64_t units() const;
  /// Of each unit but perhaps the last.
  std::uint64_t unit_bytes() const;
  /// Of granules [first, first + count).
  std::uint64_t granule_range_bytes(std::uint64_t first, std::uint64_t count) const;
  /// Packed matrices in each unit: one, or one of each expert (that is in it) or group, so many bytes apart. REQUIRES: packing.
  std::int64_t matrices() const;
  std::uint64_t matrix_bytes() const;
  /// Units [first, first + count) of the first matrix as products see them, at `data`. REQUIRES: packing.
  kernels::PackedMatrix matrix(std::int64_t first, std::int64_t count, const std::byte* data) const;
};

/// A rule of the sharding plan, as the user gave it: which modules are parallel, and how.
enum class ParallelStyle : std::uint8_t { kColumn, kRow, kExpert };
inline constexpr std::string_view kStyles[] = {"column", "row", "expert"};  // by ParallelStyle
struct ShardingRule {
  std::string pattern;  ///< module path with * for any run of characters
  ParallelStyle style = ParallelStyle::kColumn;
  std::int64_t unit = 1;
  std::string group = "tp";
  std::int64_t together = 1;
  bool copies = false;
};

/// A file of weights: its first `header_bytes` are the safetensors header, the tensors fill the rest without gaps. Or a file of
/// a checkpoint, outside of the package, in which tensors lie row-major, whether they are divided or not.
struct WeightFileEntry {
  std::string name;                      ///< inside the package
  std::optional<std::string> reference;  ///< path of a file outside, absolute or from the package's directory
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;
  std::string header_sha256;
};

/// A file that goes with the model and is read as a whole: what texts are for it.
struct TextFileEntry {
  std::string name;  ///< one of kTextFiles
  std::uint64_t bytes = 0;
  std::string sha256;
};
inline constexpr std::string_view kTextFiles[] = {"tokenizer.json", "chat_format.json"};

/// What a causal language model is beside its graph.
struct LanguageModelEntry {
  std::int64_t max_context = 0;           ///< tokens of one sequence
  std::vector<std::int32_t> stop_tokens;  ///< that end a text
};

/// Of which program a package is one rank's part; it can be loaded at these places only.
struct PartEntry {
  std::string program;  ///< tells it from all others
  std::map<std::string, GroupPlace> places;
};

struct Manifest {
  int format_version = 0;
  std::string sha256;    ///< of manifest.json: the package's identity
  std::string producer;  ///< "accord 0.1.0, torch 2.13.0"
  std::vector<std::string> groups;
  std::vector<ShardingRule> rules;
  std::uint64_t graph_bytes = 0;  ///< of graph.json
  std::string graph_sha256;
  std::vector<TextFileEntry> text_files;
  std::vector<WeightFileEntry> weight_files;
  std::vector<TensorEntry> tensors;
  std::optional<LanguageModelEntry> language_model;
  std::optional<PartEntry> part;
};

/// Reads the text of manifest.json and checks it: sizes that can exist, known names, tensors that fill their files
/// without gap or overlap, one hash for each granule. kCorrupt names what is wrong; kUnsupported another format
/// version. Sets everything but `sha256`.
Result<Manifest> parse_manifest(std::string_view json);

/// The manifest's tensors by name. Points into the manifest, and stays right when that is moved.
using TensorsByName = std::unordered_map<std::string_view, const TensorEntry*>;
TensorsByName tensors_by_name(const Manifest& manifest);

/// Which units a rank holds: units are spread as evenly as they go, the first ranks get one more.
struct UnitRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
UnitRange units_of_rank(std::int64_t units, Rank rank, int size);
/// The same for a tensor of `units` units: by `together` and `copies` of its sharding. nullopt if `size` ranks cannot share it.
std::optional<UnitRange> units_of_rank(const Sharding& sharding, std::int64_t units, Rank rank, int size);

class PackageFolder;
class FileMapping;

/// An open package: manifest and graph are read and checked, weights are read on demand. Thread-compatible.
class Package {
 public:
  /// Reads manifest, graph and the headers of the weight files, and holds them against each other: parameters, and the
  /// shardings against what the rules give. kNotFound if there
  /// is no package, kCorrupt (names the file and what is wrong), kUnsupported (another format version, an unknown op).
  static Result<Package> open(const std::string& path);
  Package(Package&&) = default;
  Package& operator=(Package&&) = default;

  const Manifest& manifest() const { return manifest_; }
  const Graph& graph() const { return graph_; }
  const std::string& path() const { return path_; }
  /// kNotFound if there is none of that name.
  Result<const TensorEntry*> tensor(std::string_view name) const;

  /// Granules [first, first + count) of `tensor` where they lie in memory that is mapped from its file and shared with other
  /// processes; they stay as long as file_mappings() does. Not yet read.
  Result<std::span<const std::byte>> map_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count);
  /// Lets all that is mapped so far be read, and nothing else.
  void expect_mapped() const;
  /// Reads mapped granules, from `first` on at `bytes`, where their pages are not there, and holds them against their hashes.
  /// Thread-safe, after expect_mapped(). kCorrupt as from read_granules(), kIo.
  Status check_mapped(const TensorEntry& tensor, std::uint64_t first, std::span<const std::byte> bytes) const;
  /// Of all files of which something is mapped. Pages that the kernel mapped beside what was asked for are given back.
  std::vector<std::shared_ptr<const FileMapping>> file_mappings();

  /// Reads granules [first, first + count) of `tensor` into `destination` (of exactly their bytes) and checks each
  /// against its hash; kCorrupt names file, tensor, granule and byte range. Reads nothing else.
  Status read_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count,
                       std::span<std::byte> destination);

  /// The file of kTextFiles, checked; nullopt if the package has none of that name.
  Result<std::optional<std::string>> text_file(std::string_view name);

  /// Bytes read so far, of manifest and graph, and of weights.
  std::uint64_t metadata_bytes_read() const { return metadata_bytes_read_; }
  std::uint64_t weight_bytes_read() const { return weight_bytes_read_; }

 private:
  struct WeightFile;
  Package() = default;
  static Result<Package> read(const PackageFolder& folder);
  Status check_granules(const TensorEntry& tensor, std::uint64_t first, std::span<const std::byte> bytes) const;
  std::string path_;
  Manifest manifest_;
  TensorsByName tensors_;
  Graph graph_;
  std::vector<std::shared_ptr<WeightFile>> files_;
  std::uint64_t metadata_bytes_read_ = 0;
  std::uint64_t weight_bytes_read_ = 0;
};

}  // namespace accord::engine
