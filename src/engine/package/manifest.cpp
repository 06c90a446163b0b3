// manifest.json -> Manifest. Every number (dimension, product, offset) is range-checked before it is used.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.hpp"
#include "engine/graph/dtypes.hpp"
#include "engine/graph/strict_json.hpp"
#include "engine/package/language_model_entry.hpp"
#include "engine/package/manifest_file.hpp"
#include "engine/package/manifest_layout.hpp"
#include "engine/package/package.hpp"
#include "engine/package/packing.hpp"
#include "engine/package/program.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 2;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the safetensors library's own limit
constexpr std::int64_t kMaxGraphBytes = std::int64_t{256} << 20;
constexpr std::int64_t kMaxGranuleBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 40;
constexpr std::size_t kMaxGroups = 64;
constexpr std::size_t kMaxPathBytes = 4096;
constexpr std::size_t kMaxRules = 10'000;
constexpr std::size_t kMaxFiles = 100'000;
constexpr std::size_t kMaxTensors = 4'000'000;
constexpr std::size_t kMaxGranules = 16'000'000;

// File names stay inside the package: letters, digits, "-", "_" and ".", not beginning with ".".
bool is_file_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name[0] != '.' && name.size() <= 255 && std::all_of(name.begin(), name.end(), allowed);
}

Status check_version(const json& document) {
  if (is_program(document)) return not_a_single_engine(document);
  if (!document.is_object() || !document.contains("format") || document["format"] != "accord-package") {
    return corrupt_at(kManifestName, "\"format\" is not \"accord-package\"");
  }
  if (!document.contains("format_version") || !document["format_version"].is_number_integer()) {
    return corrupt_at(kManifestName, "\"format_version\" is missing or not a whole number");
  }
  if (document["format_version"] != kFormatVersion) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{}: format version {}; this accord reads version {}: export the model again, or use the "
                              "accord that made it",
                              kManifestName, document["format_version"].dump(), kFormatVersion));
  }
  return {};
}

class Reader {
 public:
  Result<Manifest> read(const json& document) {
    static constexpr std::array<std::string_view, 7> kKeys = {"format", "format_version", "producer", "groups",
                                                              "rules",  "files",          "tensors"};
    static constexpr std::array<std::string_view, 3> kOptional = {"language_model", "part", "structure"};
    ACCORD_RETURN_IF_ERROR(check_version(document));
    ACCORD_ASSIGN_OR_RETURN(const auto top, JsonObject::read(document, std::string(kManifestName), kKeys, kOptional));
    manifest_.format_version = kFormatVersion;
    ACCORD_ASSIGN_OR_RETURN(manifest_.producer, top.text("producer", kMaxNameBytes));
    ACCORD_RETURN_IF_ERROR(read_groups(top));
    ACCORD_RETURN_IF_ERROR(read_rules(top));
    ACCORD_RETURN_IF_ERROR(read_files(top));
    ACCORD_RETURN_IF_ERROR(read_tensors(top));
    ACCORD_RETURN_IF_ERROR(check_layout(manifest_));
    const bool has_encoder = graph_files(manifest_).size() > 1;
    if (top.has("language_model")) {
      ACCORD_ASSIGN_OR_RETURN(manifest_.language_model,
                              parse_language_model_entry(top.at("language_model"), has_encoder));
    }
    if (has_encoder && !manifest_.language_model) return top.corrupt("it has an encoder, but is not a language model");
    if (top.has("part")) {
      ACCORD_ASSIGN_OR_RETURN(manifest_.part, parse_part_entry(top.at("part")));
    }
    if (top.has("structure")) ACCORD_RETURN_IF_ERROR(check_structure(top));
    return std::move(manifest_);
  }

 private:
  Status read_groups(const JsonObject& top) {
    ACCORD_ASSIGN_OR_RETURN(const auto* groups, top.array("groups", kMaxGroups));
    for (const auto& item : *groups) {
      ACCORD_ASSIGN_OR_RETURN(auto name, read_text(item, "manifest.json: groups", kMaxNameBytes));
      if (name.empty()) return top.corrupt("a group has no name");
      const auto& known = manifest_.groups;
      if (std::find(known.begin(), known.end(), name) != known.end()) {
        return top.corrupt(fmt::format("there are two groups \"{}\"", name));
      }
      manifest_.groups.push_back(std::move(name));
    }
    return {};
  }

  Result<std::string> read_group(const JsonObject& object) const {
    ACCORD_ASSIGN_OR_RETURN(auto group, object.name("group"));
    if (std::find(manifest_.groups.begin(), manifest_.groups.end(), group) == manifest_.groups.end()) {
      const std::vector<std::string_view> names(manifest_.groups.begin(), manifest_.groups.end());
      return object.corrupt(unknown_name("group", group, names).message());
    }
    return group;
  }

  Status read_rules(const JsonObject& top) {
    static constexpr std::array<std::string_view, 4> kKeys = {"pattern", "style", "unit", "group"};
    static constexpr std::array<std::string_view, 2> kOptional = {"together", "copies"};
    ACCORD_ASSIGN_OR_RETURN(const auto* rules, top.array("rules", kMaxRules));
    for (const auto& item : *rules) {
      const auto where = fmt::format("{}: rule {}", kManifestName, manifest_.rules.size());
      ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys, kOptional));
      ShardingRule rule;
      ACCORD_ASSIGN_OR_RETURN(rule.pattern, object.name("pattern"));
      ACCORD_ASSIGN_OR_RETURN(const auto style, object.name("style"));
      const auto* const known = std::find(std::begin(kStyles), std::end(kStyles), style);
      if (known == std::end(kStyles)) return object.corrupt(unknown_name("style", style, kStyles).message());
      rule.style = static_cast<ParallelStyle>(known - std::begin(kStyles));
      ACCORD_ASSIGN_OR_RETURN(rule.unit, object.integer("unit", 1, kMaxDimension));
      ACCORD_ASSIGN_OR_RETURN(rule.group, read_group(object));
      ACCORD_RETURN_IF_ERROR(read_sharing(object, rule.together, rule.copies));
      if (rule.copies && rule.style == ParallelStyle::kRow) return object.corrupt("copies of a row would count twice");
      if (rule.style == ParallelStyle::kExpert && (rule.unit != 1 || rule.together != 1 || rule.copies)) {
        return object.corrupt("experts are divided one by one, without copies");
      }
      manifest_.rules.push_back(std::move(rule));
    }
    return {};
  }

  // Only Python uses the structure, and parses it itself: how the model's arguments and outputs are nested.
  static Status check_structure(const JsonObject& top) {
    static constexpr std::array<std::string_view, 4> kKeys = {"inputs", "outputs", "in_spec", "out_spec"};
    return JsonObject::read(top.at("structure"), fmt::format("{}: structure", kManifestName), kKeys).status();
  }

  Status read_text_file(const json& item, const std::string& where) {
    static constexpr std::array<std::string_view, 3> kKeys = {"name", "size", "sha256"};
    ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys));
    TextFileEntry file;
    ACCORD_ASSIGN_OR_RETURN(file.name, object.name("name"));
    if (std::find(std::begin(kTextFiles), std::end(kTextFiles), file.name) == std::end(kTextFiles)) {
      return object.corrupt(unknown_name("file", file.name, kTextFiles).message());
    }
    ACCORD_ASSIGN_OR_RETURN(const auto bytes, object.integer("size", 1, kMaxGraphBytes));
    file.bytes = static_cast<std::uint64_t>(bytes);
    ACCORD_ASSIGN_OR_RETURN(file.sha256, object.hexadecimal("sha256", 64));
    for (const auto& other : manifest_.text_files) {
      if (other.name == file.name) return object.corrupt(fmt::format("there are two files \"{}\"", file.name));
    }
    manifest_.text_files.push_back(std::move(file));
    return {};
  }

  // graph.json first, then the weight files, with text files anywhere among them.
  Status read_files(const JsonObject& top) {
    static constexpr std::array<std::string_view, 3> kGraphKeys = {"name", "size", "sha256"};
    static constexpr std::array<std::string_view, 4> kWeightKeys = {"name", "size", "header_size", "header_sha256"};
    static constexpr std::array<std::string_view, 1> kWeightOptional = {"reference"};
    ACCORD_ASSIGN_OR_RETURN(const auto* files, top.array("files", kMaxFiles));
    if (files->empty()) return top.corrupt("lists no files");
    ACCORD_ASSIGN_OR_RETURN(const auto graph, JsonObject::read((*files)[0], "manifest.json: file 0", kGraphKeys));
    ACCORD_ASSIGN_OR_RETURN(const auto graph_name, graph.name("name"));
    if (graph_name != "graph.json") return graph.corrupt("the first file is not \"graph.json\"");
    ACCORD_ASSIGN_OR_RETURN(const auto graph_bytes, graph.integer("size", 1, kMaxGraphBytes));
    manifest_.graph_bytes = static_cast<std::uint64_t>(graph_bytes);
    ACCORD_ASSIGN_OR_RETURN(manifest_.graph_sha256, graph.hexadecimal("sha256", 64));
    for (std::size_t i = 1; i < files->size(); ++i) {
      const auto where = fmt::format("{}: file {}", kManifestName, i);
      if ((*files)[i].is_object() && (*files)[i].contains("sha256")) {
        ACCORD_RETURN_IF_ERROR(read_text_file((*files)[i], where));
        continue;
      }
      ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read((*files)[i], where, kWeightKeys, kWeightOptional));
      WeightFileEntry file;
      ACCORD_ASSIGN_OR_RETURN(file.name, object.name("name"));
      if (!is_file_name(file.name) || !file.name.ends_with(".safetensors")) {
        return object.corrupt(
            fmt::format("{} is not allowed: a weight file must be named NAME.safetensors and be in the "
                        "package itself",
                        quoted_text(file.name)));
      }
      ACCORD_ASSIGN_OR_RETURN(const auto bytes, object.integer("size", 8, kMaxFileBytes));
      ACCORD_ASSIGN_OR_RETURN(const auto header, object.integer("header_size", 8, std::min(kMaxHeaderBytes, bytes)));
      file.bytes = static_cast<std::uint64_t>(bytes);
      file.header_bytes = static_cast<std::uint64_t>(header);
      ACCORD_ASSIGN_OR_RETURN(file.header_sha256, object.hexadecimal("header_sha256", 64));
      if (object.has("reference")) {
        ACCORD_ASSIGN_OR_RETURN(file.reference, object.text("reference", kMaxPathBytes));
      }
      if (!file_index_.emplace(file.name, static_cast<int>(manifest_.weight_files.size())).second) {
        return object.corrupt(fmt::format("there are two files \"{}\"", file.name));
      }
      manifest_.weight_files.push_back(std::move(file));
    }
    return {};
  }

  Status read_tensors(const JsonObject& top) {
    ACCORD_ASSIGN_OR_RETURN(const auto* tensors, top.array("tensors", kMaxTensors));
    std::set<std::string> names;
    manifest_.tensors.reserve(tensors->size());
    for (const auto& item : *tensors) {
      ACCORD_ASSIGN_OR_RETURN(auto tensor, read_tensor(item));
      if (!names.insert(tensor.name).second) {
        return top.corrupt(fmt::format("there are two tensors \"{}\"", tensor.name));
      }
      manifest_.tensors.push_back(std::move(tensor));
    }
    return {};
  }

  Result<TensorEntry> read_tensor(const json& item) {
    static constexpr std::array<std::string_view, 7> kKeys = {"name",   "dtype",         "shape", "file",
                                                              "offset", "granule_bytes", "xxh3"};
    static constexpr std::array<std::string_view, 2> kOptional = {"sharding", "packed"};
    auto where = fmt::format("{}: tensor {}", kManifestName, manifest_.tensors.size());
    TensorEntry tensor;
    ACCORD_ASSIGN_OR_RETURN(const auto unnamed, JsonObject::read(item, where, kKeys, kOptional));
    ACCORD_ASSIGN_OR_RETURN(tensor.name, unnamed.name("name"));
    where = fmt::format("{}: tensor \"{}\"", kManifestName, tensor.name);
    ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(item, where, kKeys, kOptional));
    ACCORD_ASSIGN_OR_RETURN(const auto dtype, object.name("dtype"));
    const auto known_dtype = engine_dtype_from_string(dtype);
    if (!known_dtype.ok()) return object.corrupt(known_dtype.status().message());
    tensor.dtype = *known_dtype;
    ACCORD_RETURN_IF_ERROR(read_shape(object, tensor));
    if (object.has("sharding")) ACCORD_RETURN_IF_ERROR(read_sharding(object, tensor));
    if (object.has("packed")) {
      ACCORD_ASSIGN_OR_RETURN(tensor.packing, read_packing(object, tensor));
      if (tensor.bytes() > kMaxFileBytes) return object.corrupt("packed: it is larger than any file");
    }
    ACCORD_ASSIGN_OR_RETURN(const auto file, object.name("file"));
    const auto found = file_index_.find(file);
    if (found == file_index_.end()) return object.corrupt(fmt::format("file {} is not listed", quoted_text(file)));
    tensor.file = found->second;
    ACCORD_ASSIGN_OR_RETURN(const auto offset, object.integer("offset", 0, kMaxFileBytes));
    tensor.offset = static_cast<std::uint64_t>(offset);
    ACCORD_RETURN_IF_ERROR(read_granules(object, tensor));
    if (!tensor.packing || tensor.offset % kPackedAlignment == 0) return tensor;
    return object.corrupt(
        fmt::format("offset: {}, but packed weights begin at multiples of {}", offset, kPackedAlignment));
  }

  static Status read_shape(const JsonObject& object, TensorEntry& tensor) {
    ACCORD_ASSIGN_OR_RETURN(const auto* shape, object.array("shape", kMaxDimensions));
    auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    for (const auto& item : *shape) {
      ACCORD_ASSIGN_OR_RETURN(const auto size, read_integer(item, object.where() + ": shape", 1, kMaxDimension));
      if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > kMaxFileBytes) {
        return object.corrupt(fmt::format("shape: has more than {}", bytes_text(std::size_t{kMaxFileBytes})));
      }
      tensor.shape.push_back(size);
    }
    return {};
  }

  Status read_sharding(const JsonObject& object, TensorEntry& tensor) const {
    static constexpr std::array<std::string_view, 3> kKeys = {"group", "dim", "unit"};
    static constexpr std::array<std::string_view, 2> kOptional = {"together", "copies"};
    if (tensor.shape.empty()) return object.corrupt("sharding: a tensor without dimensions cannot be divided");
    ACCORD_ASSIGN_OR_RETURN(const auto given,
                            JsonObject::read(object.at("sharding"), object.where() + ": sharding", kKeys, kOptional));
    Sharding sharding;
    ACCORD_ASSIGN_OR_RETURN(sharding.group, read_group(given));
    ACCORD_ASSIGN_OR_RETURN(const auto dim,
                            given.integer("dim", 0, static_cast<std::int64_t>(tensor.shape.size()) - 1));
    sharding.dim = static_cast<int>(dim);
    const auto size = tensor.shape[static_cast<std::size_t>(dim)];
    ACCORD_ASSIGN_OR_RETURN(sharding.unit, given.integer("unit", 1, size));
    ACCORD_RETURN_IF_ERROR(read_sharing(given, sharding.together, sharding.copies));
    tensor.sharding = std::move(sharding);
    if (tensor.units() % tensor.sharding->together == 0) return {};
    return given.corrupt(
        fmt::format("together: {} units are not a multiple of {}", tensor.units(), tensor.sharding->together));
  }

  static Status read_sharing(const JsonObject& object, std::int64_t& together, bool& copies) {
    if (object.has("together")) {
      ACCORD_ASSIGN_OR_RETURN(together, object.integer("together", 1, kMaxDimension));
    }
    if (!object.has("copies")) return {};
    if (!object.at("copies").is_boolean()) return object.corrupt("copies is neither true nor false");
    copies = object.at("copies").get<bool>();
    return {};
  }

  Status read_granules(const JsonObject& object, TensorEntry& tensor) {
    const auto bytes = tensor.bytes();
    ACCORD_ASSIGN_OR_RETURN(const auto granule, object.integer("granule_bytes", 1, kMaxGranuleBytes));
    tensor.granule_bytes = static_cast<std::uint64_t>(granule);
    if (tensor.sharding) {
      if (tensor.granule_bytes != tensor.unit_bytes()) {
        return object.corrupt(fmt::format("granule_bytes: {}, but each of its {} units has {}", granule, tensor.units(),
                                          tensor.unit_bytes()));
      }
    } else if (!tensor.packing && tensor.granule_bytes % size_of(tensor.dtype) != 0) {
      return object.corrupt(fmt::format("granule_bytes: {} is not a whole number of elements", granule));
    }
    const auto expected = (bytes + tensor.granule_bytes - 1) / tensor.granule_bytes;
    ACCORD_ASSIGN_OR_RETURN(const auto* hashes, object.array("xxh3", kMaxGranules));
    if (hashes->size() != expected) {
      return object.corrupt(fmt::format("xxh3: has {} hashes for {} granules", hashes->size(), expected));
    }
    tensor.granule_xxh3.reserve(hashes->size());
    for (const auto& item : *hashes) {
      ACCORD_ASSIGN_OR_RETURN(const auto text, read_text(item, object.where() + ": xxh3", 16));
      if (text.size() != 16 || !is_hexadecimal(text)) {
        return object.corrupt("xxh3: expected 16 lower-case hexadecimal digits");
      }
      std::uint64_t hash = 0;
      std::from_chars(text.data(), text.data() + text.size(), hash, 16);
      tensor.granule_xxh3.push_back(hash);
    }
    return {};
  }

  Manifest manifest_;
  std::map<std::string, int> file_index_;
};

}  // namespace

Result<Manifest> parse_manifest(std::string_view text) {
  ACCORD_ASSIGN_OR_RETURN(const auto document, parse_json(text, kManifestName, kMaxManifestBytes));
  return Reader().read(document);
}

std::vector<TextFileEntry> graph_files(const Manifest& manifest) {
  std::vector<TextFileEntry> files = {{std::string(kGraphFile), manifest.graph_bytes, manifest.graph_sha256}};
  for (const TextFileEntry& file : manifest.text_files) {
    if (file.name == kEncoderFile) files.push_back(file);
  }
  return files;
}

TensorsByName tensors_by_name(const Manifest& manifest) {
  TensorsByName tensors;
  for (const auto& tensor : manifest.tensors) tensors.emplace(tensor.name, &tensor);
  return tensors;
}

UnitRange units_of_rank(std::int64_t units, Rank rank, int size) {
  const std::int64_t each = units / size;
  const std::int64_t more = units % size;
  return {rank * each + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

std::optional<UnitRange> units_of_rank(const Sharding& sharding, std::int64_t units, Rank rank, int size) {
  const std::int64_t blocks = units / sharding.together;
  if (blocks >= size) {
    const UnitRange range = units_of_rank(blocks, rank, size);
    return UnitRange{range.first * sharding.together, range.count * sharding.together};
  }
  const std::int64_t ranks = size / blocks;  // per block
  if (size % blocks != 0 || (!sharding.copies && ranks > sharding.together)) return std::nullopt;
  const std::int64_t first = rank / ranks * sharding.together;
  if (sharding.copies) return UnitRange{first, sharding.together};
  const UnitRange range = units_of_rank(sharding.together, static_cast<Rank>(rank % ranks), static_cast<int>(ranks));
  return UnitRange{first + range.first, range.count};
}

}  // namespace accord::engine
