#pragma once
// An engine package on disk: manifest, graph, and weights in granules. docs/engine-format.md describes the format.

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
  int dim = 0;            ///< of the tensor's shape; the file stores granule after granule along it
  std::int64_t unit = 1;  ///< elements of that dimension that stay together (a head)
  /// This many units count as one (the query heads of one key head) as long as there are no more ranks than such
  /// groups of units. With more ranks, several ranks share each group.
  std::int64_t together = 1;
  bool copies = false;  ///< with more ranks than units, several ranks hold the same unit (key heads)
  bool operator==(const Sharding&) const = default;
};

/// The format of a matrix, or of the matrices of experts or of a convolution's groups, that is stored in the layout
/// that products read (kernels/linear/format.hpp), not row-major.
struct Packing {
  kernels::PackedFormat format;
  bool transposed = false;  ///< the tensor is [in, out]; otherwise [out, in], or [experts, out, in]
  /// The groups of a convolution's weight [out, in, ..], packed as [groups, out / groups, .. * in]; 0 for others.
  std::int64_t groups = 0;
  std::optional<double> error;  ///< quantization error: root of sum (packed - given)^2 / sum given^2
};

/// One weight as the manifest describes it. A tensor with a sharding is stored as its units, one after the other, with
/// one granule for each. A unit is a contiguous row-major block of the tensor's shape with `dim` cut to `unit`, or
/// that block packed (expert by expert). The last unit may be shorter; if packed, it is padded with zeros. Experts
/// that are divided among the ranks have one unit each.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::optional<Sharding> sharding;
  std::optional<Packing> packing;   ///< nullopt: row-major
  int file = 0;                     ///< index into Manifest::weight_files
  std::uint64_t offset = 0;         ///< of its first byte in the file
  std::uint64_t granule_bytes = 0;  ///< the last one may be shorter
  std::vector<std::uint64_t> granule_xxh3;

  /// Bytes in the file.
  std::uint64_t bytes() const;
  /// 1 if the tensor is not divided.
  std::int64_t units() const;
  /// Bytes of each unit, except that the last may be shorter.
  std::uint64_t unit_bytes() const;
  /// Bytes of granules [first, first + count).
  std::uint64_t granule_range_bytes(std::uint64_t first, std::uint64_t count) const;
  /// Number of packed matrices in each unit: one, or one for each expert in the unit, or one for each group. REQUIRES:
  /// packing.
  std::int64_t matrices() const;
  /// Bytes from one packed matrix of a unit to the next. REQUIRES: packing.
  std::uint64_t matrix_bytes() const;
  /// Returns units [first, first + count) of the first matrix as products see them, at `data`. REQUIRES: packing.
  kernels::PackedMatrix matrix(std::int64_t first, std::int64_t count, const std::byte* data) const;
};

/// How a rule divides a module.
enum class ParallelStyle : std::uint8_t { kColumn, kRow, kExpert };
inline constexpr std::string_view kStyles[] = {"column", "row", "expert"};  // by ParallelStyle
/// A rule of the sharding plan, as the user gave it: which modules are parallel, and how.
struct ShardingRule {
  std::string pattern;  ///< module path, where * stands for any run of characters
  ParallelStyle style = ParallelStyle::kColumn;
  std::int64_t unit = 1;
  std::string group = "tp";
  std::int64_t together = 1;
  bool copies = false;
};

/// A file of weights. Its first `header_bytes` are the safetensors header; the tensors fill the rest without gaps. Or
/// a file of a checkpoint, outside the package, whose tensors are row-major whether they are divided or not.
struct WeightFileEntry {
  std::string name;                      ///< inside the package
  std::optional<std::string> reference;  ///< path of a file outside, absolute or relative to the package's directory
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;
  std::string header_sha256;
};

/// A text file that belongs to the model and is read as a whole.
struct TextFileEntry {
  std::string name;  ///< one of kTextFiles
  std::uint64_t bytes = 0;
  std::string sha256;
};
inline constexpr std::string_view kGraphFile = "graph.json";
inline constexpr std::string_view kEncoderFile = "encoder.json";  ///< the graph of a language model's encoder
inline constexpr std::string_view kTextFiles[] = {kEncoderFile, "tokenizer.json", "chat_format.json"};

/// Description of a language model, besides its graph.
struct LanguageModelEntry {
  std::int64_t max_context = 0;            ///< tokens of one sequence
  std::vector<std::int32_t> stop_tokens;   ///< tokens that end a text
  std::vector<std::int32_t> start_tokens;  ///< with an encoder that all tokens attend to: a sequence begins with them
  /// With an encoder of images: the token of prompts that stands for a row of its output.
  std::optional<std::int32_t> source_token;
  std::vector<std::string> adapters;  ///< names of the adapters that requests may choose
};

/// Identifies the program of which a package is one rank's part. The package can be loaded only at `places`.
struct PartEntry {
  std::string program;  ///< unique to the program
  std::map<std::string, GroupPlace> places;
};

struct Manifest {
  int format_version = 0;
  std::string sha256;    ///< of manifest.json: the package's identity
  std::string producer;  ///< "accord 0.1.0, torch 2.15.0"
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

/// Returns the entries of the graphs' files: the model's, then the encoder's if there is one.
std::vector<TextFileEntry> graph_files(const Manifest& manifest);

/// Parses the text of manifest.json and checks it: valid sizes, known names, tensors that fill their files without gap
/// or overlap, one hash for each granule. Fails with kCorrupt, naming what is wrong, or with kUnsupported for another
/// format version. Sets everything except `sha256`.
Result<Manifest> parse_manifest(std::string_view json);

/// The manifest's tensors by name. Points into the manifest, and stays valid when the manifest is moved.
using TensorsByName = std::unordered_map<std::string_view, const TensorEntry*>;
TensorsByName tensors_by_name(const Manifest& manifest);

/// The units that a rank holds. Units are distributed as evenly as possible; the first ranks get one more.
struct UnitRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
UnitRange units_of_rank(std::int64_t units, Rank rank, int size);
/// The same for a tensor of `units` units, following `together` and `copies` of its sharding. Returns nullopt if
/// `size` ranks cannot share it.
std::optional<UnitRange> units_of_rank(const Sharding& sharding, std::int64_t units, Rank rank, int size);

/// The graphs of a package: the model's own, and that of a language model's encoder.
enum class PackageGraph : std::uint8_t { kModel, kEncoder };

class PackageFolder;
class FileMapping;

/// An open package: manifest and graph have been read and checked, weights are read on demand. Thread-compatible.
class Package {
 public:
  /// Reads manifest, graphs and the headers of the weight files, and checks them against each other: parameters against
  /// tensors, shardings against the rules. Fails with kNotFound if there is no package, with kCorrupt (naming the file
  /// and what is wrong), or with kUnsupported (another format version, an unknown op). `graph`: the one that is kept. A
  /// package opened with its encoder's graph is that of a model of its own, which is no language model and has the
  /// same tensors; fails with kNotFound if there is no such graph.
  static Result<Package> open(const std::string& path, PackageGraph graph = PackageGraph::kModel);
  Package(Package&&) = default;
  Package& operator=(Package&&) = default;

  const Manifest& manifest() const { return manifest_; }
  const Graph& graph() const { return graph_; }
  /// True if the package has the graph of an encoder.
  bool has_encoder() const;
  const std::string& path() const { return path_; }
  /// Fails with kNotFound if there is no tensor of that name.
  Result<const TensorEntry*> tensor(std::string_view name) const;

  /// Returns granules [first, first + count) of `tensor` in memory that is mapped from their file and shared with
  /// other processes. The memory is valid as long as file_mappings() are held. Does not read anything yet.
  Result<std::span<const std::byte>> map_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count);
  /// Prepares everything mapped so far for reading, and nothing else. See FileMapping::expect().
  void expect_mapped() const;
  /// Reads those pages of mapped granules that are not in memory, and checks the granules against their hashes.
  /// `bytes` begins with granule `first`. Thread-safe after expect_mapped(). Fails with kCorrupt like read_granules(),
  /// or with kIo.
  Status check_mapped(const TensorEntry& tensor, std::uint64_t first, std::span<const std::byte> bytes) const;
  /// Returns the mappings of all files of which something is mapped. Releases pages that the kernel mapped besides the
  /// requested ones.
  std::vector<std::shared_ptr<const FileMapping>> file_mappings();

  /// Reads granules [first, first + count) of `tensor` into `destination`, which has exactly their size, and checks
  /// each against its hash. Reads nothing else. Fails with kCorrupt, naming file, tensor, granule and byte range.
  Status read_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count,
                       std::span<std::byte> destination);

  /// Returns the contents of a file of kTextFiles, checked, or nullopt if the package does not have it.
  Result<std::optional<std::string>> text_file(std::string_view name);

  /// Bytes read so far: of the metadata (manifest, graph, headers, text files), and of weights.
  std::uint64_t metadata_bytes_read() const { return metadata_bytes_read_; }
  std::uint64_t weight_bytes_read() const { return weight_bytes_read_; }

 private:
  struct WeightFile;
  Package() = default;
  static Result<Package> read(const PackageFolder& folder, PackageGraph graph);
  Result<Graph> read_graph(const PackageFolder& folder, const TextFileEntry& entry);
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
