// libFuzzer target for all code that reads a package. The first byte of an input selects the kind of the rest:
//   0: graph.json
//   1: manifest.json
//   2: a whole package: lengths of manifest and graph (4 bytes each, little-endian), manifest, graph, one weight file
// A whole package is sealed first (its sizes and hashes are set to the right values), so that the input gets past
// those checks. Then it is opened, read, verified and loaded, for one rank and as each of two ranks, in a directory
// of this process's own.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accord/engine.hpp"
#include "accord/package.hpp"
#include "base/hash.hpp"
#include "engine/graph/graph.hpp"
#include "engine/graph/ops.hpp"
#include "engine/package/package.hpp"
#include "unit/engine/graph/graph_json.hpp"

namespace {

using accord::engine::Graph;
using accord::engine::Package;
using accord::engine::SymbolicInt;
using accord::engine::SymbolicShape;
using nlohmann::json;

constexpr std::size_t kMaxSizeText = 1024;  // the most that a reader accepts

std::string sha256(std::string_view bytes) { return accord::sha256_hex(std::as_bytes(std::span(bytes))); }

void require(bool held) {
  if (!held) std::abort();
}

// A short product of sums may be too long to read once it is multiplied out.
bool has_long_size(const Graph& graph) {
  const auto is_long = [](const SymbolicInt& size) { return size.to_string().size() > kMaxSizeText; };
  const auto any_long = [&](const SymbolicShape& sizes) { return std::any_of(sizes.begin(), sizes.end(), is_long); };
  const auto long_argument = [&](const auto& item) {
    const auto* size = std::get_if<SymbolicInt>(&item.second);
    const auto* sizes = std::get_if<SymbolicShape>(&item.second);
    return (size != nullptr && is_long(*size)) || (sizes != nullptr && any_long(*sizes));
  };
  return std::any_of(graph.values.begin(), graph.values.end(),
                     [&](const auto& value) { return any_long(value.shape); }) ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
           return std::any_of(node.arguments.begin(), node.arguments.end(), long_argument);
         });
}

// A graph that can be read can be written and read again, and stays the same.
void fuzz_graph(std::string_view text) {
  const auto graph = accord::engine::parse_graph(text);
  if (!graph.ok()) return;
  (void)accord::engine::check_ops(*graph).ok();
  if (has_long_size(*graph)) return;
  const auto again = accord::engine::parse_graph(to_json(*graph));
  require(again.ok() && to_json(*again) == to_json(*graph));
}

struct Parts {
  std::string manifest, graph, weights;
};

bool split(std::string_view input, Parts& parts) {
  if (input.size() < 8) return false;
  std::uint32_t lengths[2];
  std::memcpy(lengths, input.data(), 8);
  input.remove_prefix(8);
  if (lengths[0] > input.size() || lengths[1] > input.size() - lengths[0]) return false;
  parts.manifest = input.substr(0, lengths[0]);
  parts.graph = input.substr(lengths[0], lengths[1]);
  parts.weights = input.substr(lengths[0] + lengths[1]);
  return true;
}

// Sets the hashes of the graph and the header and, if the manifest can be read, those of its granules.
void seal(Parts& parts, std::string& weight_name) {
  auto document = json::parse(parts.manifest, nullptr, false);
  if (!document.is_object() || !document.contains("files") || !document["files"].is_array()) return;
  auto& files = document["files"];
  if (files.size() < 2 || !files[0].is_object() || !files[1].is_object()) return;
  files[0]["size"] = parts.graph.size();
  files[0]["sha256"] = sha256(parts.graph);
  files[1]["size"] = parts.weights.size();
  if (files[1].contains("header_size") && files[1]["header_size"].is_number_unsigned()) {
    const auto header = files[1]["header_size"].get<std::uint64_t>();
    files[1]["header_sha256"] = sha256(std::string_view(parts.weights).substr(0, header));
  }
  parts.manifest = document.dump(-1, ' ', false, json::error_handler_t::replace);
  const auto manifest = accord::engine::parse_manifest(parts.manifest);
  if (!manifest.ok()) return;
  weight_name = manifest->weight_files[0].name;
  for (std::size_t i = 0; i < manifest->tensors.size(); ++i) {
    const auto& tensor = manifest->tensors[i];
    if (tensor.file != 0) continue;
    for (std::size_t g = 0; g < tensor.granule_xxh3.size(); ++g) {
      const auto begin = g * tensor.granule_bytes;
      const auto bytes = std::string_view(parts.weights)
                             .substr(tensor.offset + begin, std::min(tensor.granule_bytes, tensor.bytes() - begin));
      document["tensors"][i]["xxh3"][g] = accord::hex64(accord::xxh3(std::as_bytes(std::span(bytes))));
    }
  }
  parts.manifest = document.dump(-1, ' ', false, json::error_handler_t::replace);
}

void write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A directory that is removed when the process ends.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("accord-fuzz-" + std::to_string(getpid()) + ".accord")) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void fuzz_package(std::string_view input) {
  static const Folder own;
  const auto& folder = own.path();
  Parts parts;
  if (!split(input, parts)) return;
  std::string weight_name = "weights-00001.safetensors";
  seal(parts, weight_name);
  write(folder / "manifest.json", parts.manifest);
  write(folder / "manifest.sha256", sha256(parts.manifest) + "\n");
  write(folder / "graph.json", parts.graph);
  write(folder / weight_name, parts.weights);
  auto package = Package::open(folder);
  if (package.ok()) {
    for (const auto& tensor : package->manifest().tensors) {
      std::vector<std::byte> bytes(tensor.bytes());
      require(package->read_granules(tensor, 0, tensor.granule_xxh3.size(), bytes).ok());
    }
  }
  if (package.ok()) {
    // The result does not matter, but it must arrive soon without undefined behaviour.
    for (const accord::GroupPlace place :
         {accord::GroupPlace{0, 1}, accord::GroupPlace{0, 2}, accord::GroupPlace{1, 2}}) {
      std::map<std::string, accord::GroupPlace> places;
      for (const auto& group : package->manifest().groups) places[group] = place;
      (void)accord::Engine::load(folder, places, {.threads = 1}).ok();
    }
  }
  const auto damages = accord::verify_package(folder);
  require(!package.ok() || (damages.ok() && damages->empty()));
  std::filesystem::remove(folder / weight_name);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: fuzz_graph(rest); break;
    case 1: (void)accord::engine::parse_manifest(rest).ok(); break;
    default: fuzz_package(rest); break;
  }
  return 0;
}
