// Verification continues where loading would stop: every file is read to its end, and all damaged pieces are listed,
// as is everything in the package that does not belong to it. If the manifest is damaged but still readable, the rest
// is checked against it.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "accord/package.hpp"
#include "base/hash.hpp"
#include "engine/graph/ops.hpp"
#include "engine/package/granules.hpp"
#include "engine/package/manifest_file.hpp"
#include "engine/package/package.hpp"
#include "engine/package/package_folder.hpp"
#include "engine/package/program_look.hpp"
#include "engine/package/sharding_rules.hpp"

namespace accord::engine {
namespace {

class Verifier {
 public:
  Verifier(const PackageFolder& folder, void (*progress)(std::uint64_t, std::uint64_t))
      : folder_(folder), progress_(progress) {}

  Result<std::vector<Damage>> verify() {
    const auto text = read_manifest_text(folder_);
    if (!text.ok()) return finish_with("manifest.json", text.status());
    note("manifest.json", text->hash_status);
    auto manifest = parse_manifest(text->text);
    if (manifest.ok()) {
      manifest_ = std::move(*manifest);
    } else {
      return finish_with("manifest.json", manifest.status());
    }
    total_ = text->bytes_read + manifest_.graph_bytes;
    for (const auto& file : manifest_.weight_files) total_ += file.header_bytes;
    for (const auto& tensor : manifest_.tensors) total_ += tensor.bytes();
    for (const auto& file : manifest_.text_files) total_ += file.bytes;
    advance(text->bytes_read);
    verify_graphs();
    for (const auto& file : manifest_.text_files) {
      if (file.name != kEncoderFile) verify_text(file);
    }
    for (std::size_t i = 0; i < manifest_.weight_files.size(); ++i) verify_weights(static_cast<int>(i));
    ACCORD_RETURN_IF_ERROR(report_unknown_files());
    return std::move(damages_);
  }

 private:
  void note(const std::string& file, const Status& status) {
    if (!status.ok()) note(file, status.message());
  }

  // Messages of the reader begin with the file's name, which is reported separately here.
  void note(const std::string& file, std::string_view what) {
    const auto prefix = file + ": ";
    if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
    damages_.push_back({file, std::string(what)});
  }

  // The result if nothing more can be read.
  Result<std::vector<Damage>> finish_with(const std::string& file, const Status& status) {
    note(file, status);
    return std::move(damages_);
  }

  void advance(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_ != nullptr) progress_(done_, total_);
  }

  void verify_graphs() {
    std::vector<Graph> graphs;
    const std::vector<TextFileEntry> files = graph_files(manifest_);
    for (const TextFileEntry& entry : files) verify_graph(entry, graphs);
    if (graphs.size() == files.size()) note("manifest.json", check_sharding(graphs, manifest_));
  }

  // Adds the graph to `graphs` if its ops are known.
  void verify_graph(const TextFileEntry& entry, std::vector<Graph>& graphs) {
    const auto file = folder_.file(entry.name, entry.bytes);
    note(entry.name, file.status());
    if (file.ok()) {
      const auto text = read_hashed(*file, entry.bytes, entry.sha256, "the graph");
      note(entry.name, text.status());
      if (text.ok()) {
        auto graph = parse_graph(*text);
        note(entry.name, graph.status());
        if (graph.ok()) {
          const auto known_ops = check_ops(*graph);
          note(entry.name, known_ops);
          note(entry.name, check_parameters(*graph, entry.name, manifest_));
          if (known_ops.ok()) graphs.push_back(std::move(*graph));
        }
      }
    }
    advance(entry.bytes);
  }

  void verify_text(const TextFileEntry& entry) {
    const auto file = folder_.file(entry.name, entry.bytes);
    note(entry.name, file.status());
    if (file.ok()) note(entry.name, read_hashed(*file, entry.bytes, entry.sha256, "the file").status());
    advance(entry.bytes);
  }

  // A file of the wrong length is still read as far as possible, so that all its damaged tensors are named.
  void verify_weights(int index) {
    const auto& entry = manifest_.weight_files[static_cast<std::size_t>(index)];
    auto file = open_weight_file(folder_, entry);
    note(entry.name, file.status());
    if (!file.ok() && !entry.reference) file = folder_.file(entry.name);
    if (!file.ok()) return;
    if (file->bytes() >= entry.header_bytes) {
      note(entry.name, read_hashed(*file, entry.header_bytes, entry.header_sha256, "the safetensors header").status());
    }
    advance(entry.header_bytes);
    for (const auto& tensor : manifest_.tensors) {
      if (tensor.file == index) verify_tensor(*file, entry, tensor);
    }
  }

  void verify_tensor(const PackageFile& file, const WeightFileEntry& entry, const TensorEntry& tensor) {
    for (std::uint64_t granule = 0; granule < tensor.granule_xxh3.size(); ++granule) {
      const auto bytes = tensor.granule_range_bytes(granule, 1);
      if (tensor.offset + granule * tensor.granule_bytes + bytes > file.bytes()) {
        note(file.name(),
             fmt::format("tensor \"{}\" is truncated: granules from {} on are missing", tensor.name, granule));
        return;
      }
      buffer_.resize(std::max(buffer_.size(), static_cast<std::size_t>(bytes)));
      const auto piece = std::span(buffer_).first(static_cast<std::size_t>(bytes));
      if (const auto status = read_granules(file, entry, tensor, granule, 1, piece); !status.ok()) {
        note(file.name(), status.with_context(fmt::format("tensor \"{}\"", tensor.name)));
        return;
      }
      if (const auto hash = xxh3(piece); hash != tensor.granule_xxh3[static_cast<std::size_t>(granule)]) {
        note(file.name(), damaged_granule(manifest_, tensor, granule, hash));
      }
      advance(bytes);
    }
  }

  Status report_unknown_files() {
    std::vector<std::string> known = {"manifest.json", "manifest.sha256", "graph.json"};
    for (const auto& file : manifest_.weight_files) {
      if (!file.reference) known.push_back(file.name);
    }
    for (const auto& file : manifest_.text_files) known.push_back(file.name);
    std::sort(known.begin(), known.end());
    ACCORD_ASSIGN_OR_RETURN(const auto names, folder_.names());
    for (const auto& name : names) {
      if (!std::binary_search(known.begin(), known.end(), name)) {
        note(name, "does not belong to the package");
      }
    }
    return {};
  }

  const PackageFolder& folder_;
  void (*progress_)(std::uint64_t, std::uint64_t);
  Manifest manifest_;
  std::vector<Damage> damages_;
  std::vector<std::byte> buffer_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace
}  // namespace accord::engine

namespace accord {

Result<std::vector<Damage>> verify_package(const std::string& path, void (*progress)(std::uint64_t, std::uint64_t)) {
  ACCORD_ASSIGN_OR_RETURN(const auto folder, engine::PackageFolder::open(path));
  const auto program = engine::find_program(folder);
  if (program.ok() && *program) return engine::verify_program(path, folder, **program, progress);
  if (program.status().code() == StatusCode::kUnsupported) return program.status();
  return engine::Verifier(folder, progress).verify();
}

}  // namespace accord
