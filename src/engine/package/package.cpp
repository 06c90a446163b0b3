// Opening reads the metadata, outside in: manifest.sha256 covers manifest.json, which covers graph.json and the header
// of each weight file, and states the length of every file. Weights are not touched. map_granules() maps a weight file
// as a whole, once. check_mapped() reads the pages of the requested granules and hashes them, piece by piece, on
// several threads. read_granules() reads granules with pread() into the caller's memory.

#include "engine/package/package.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "engine/graph/ops.hpp"
#include "engine/package/granules.hpp"
#include "engine/package/manifest_file.hpp"
#include "engine/package/package_folder.hpp"
#include "engine/package/sharding_rules.hpp"

namespace accord::engine {

struct Package::WeightFile {
  PackageFile file;
  std::shared_ptr<const FileMapping> mapping;              // null until something in the file is mapped
  std::map<std::uint64_t, std::uint64_t> mapped_granules;  // begin -> end, bytes in the file
};

Result<Package> Package::open(const std::string& path, PackageGraph graph) {
  ACCORD_ASSIGN_OR_RETURN(const auto folder, PackageFolder::open(path));
  ACCORD_ASSIGN_OR_RETURN(auto package, read(folder, graph));
  package.path_ = path;
  return package;
}

bool Package::has_encoder() const { return graph_files(manifest_).size() > 1; }

Result<Graph> Package::read_graph(const PackageFolder& folder, const TextFileEntry& entry) {
  ACCORD_ASSIGN_OR_RETURN(const auto file, folder.file(entry.name, entry.bytes));
  ACCORD_ASSIGN_OR_RETURN(const auto text, read_hashed(file, entry.bytes, entry.sha256, "the graph"));
  metadata_bytes_read_ += text.size();
  ACCORD_ASSIGN_OR_RETURN(Graph graph, parse_graph(text));
  ACCORD_RETURN_IF_ERROR(check_ops(graph));
  ACCORD_RETURN_IF_ERROR(check_parameters(graph, entry.name, manifest_));
  return graph;
}

Result<Package> Package::read(const PackageFolder& folder, PackageGraph graph) {
  Package package;
  ACCORD_ASSIGN_OR_RETURN(const auto manifest, read_manifest_text(folder));
  ACCORD_RETURN_IF_ERROR(manifest.hash_status);
  ACCORD_ASSIGN_OR_RETURN(package.manifest_, parse_manifest(manifest.text));
  package.manifest_.sha256 = manifest.sha256;
  package.tensors_ = tensors_by_name(package.manifest_);
  package.metadata_bytes_read_ = manifest.bytes_read;

  auto& known = package.manifest_;
  std::vector<Graph> graphs;
  for (const TextFileEntry& entry : graph_files(known)) {
    ACCORD_ASSIGN_OR_RETURN(graphs.emplace_back(), package.read_graph(folder, entry));
  }
  ACCORD_RETURN_IF_ERROR(check_sharding(graphs, known));
  if (graph == PackageGraph::kEncoder) {
    if (graphs.size() < 2) return Status(StatusCode::kNotFound, "the package has no encoder");
    known.graph_sha256 = graph_files(known).back().sha256;
    known.language_model.reset();
  }
  package.graph_ = std::move(graphs[graph == PackageGraph::kEncoder ? 1 : 0]);

  for (const auto& entry : known.weight_files) {
    ACCORD_ASSIGN_OR_RETURN(auto file, open_weight_file(folder, entry));
    ACCORD_ASSIGN_OR_RETURN(const auto header,
                            read_hashed(file, entry.header_bytes, entry.header_sha256, "the safetensors header"));
    package.metadata_bytes_read_ += header.size();
    package.files_.push_back(std::make_shared<WeightFile>(WeightFile{std::move(file), nullptr, {}}));
  }
  return package;
}

Result<const TensorEntry*> Package::tensor(std::string_view name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& entry : manifest_.tensors) names.push_back(entry.name);
  const auto near = nearest_name(name, names);
  return Status(StatusCode::kNotFound, fmt::format("{}: there is no tensor {}{}", path_, quoted_text(name),
                                                   near ? fmt::format("; did you mean \"{}\"?", *near) : ""));
}

Result<std::optional<std::string>> Package::text_file(std::string_view name) {
  const auto found = std::find_if(manifest_.text_files.begin(), manifest_.text_files.end(),
                                  [&](const TextFileEntry& entry) { return entry.name == name; });
  if (found == manifest_.text_files.end()) return std::optional<std::string>();
  ACCORD_ASSIGN_OR_RETURN(const auto folder, PackageFolder::open(path_));
  ACCORD_ASSIGN_OR_RETURN(const auto file, folder.file(found->name, found->bytes));
  ACCORD_ASSIGN_OR_RETURN(auto text, read_hashed(file, found->bytes, found->sha256, "the file"));
  metadata_bytes_read_ += text.size();
  return std::optional<std::string>(std::move(text));
}

namespace {

Status check_range(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t granules = tensor.granule_xxh3.size();
  if (first <= granules && count <= granules - first) return {};
  return Status(StatusCode::kInvalidArgument,
                fmt::format("tensor \"{}\" has {} granules, but {} were requested from number {} on", tensor.name,
                            granules, count, first));
}

}  // namespace

Result<std::span<const std::byte>> Package::map_granules(const TensorEntry& tensor, std::uint64_t first,
                                                         std::uint64_t count) {
  ACCORD_RETURN_IF_ERROR(check_range(tensor, first, count));
  WeightFile& file = *files_[static_cast<std::size_t>(tensor.file)];
  if (file.mapping == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(file.mapping, file.file.map());
  }
  const std::uint64_t begin = tensor.offset + first * tensor.granule_bytes;
  const std::uint64_t bytes = tensor.granule_range_bytes(first, count);
  weight_bytes_read_ += bytes;
  file.mapped_granules[begin] = std::max(file.mapped_granules[begin], begin + bytes);
  return file.mapping->bytes().subspan(begin, bytes);
}

void Package::expect_mapped() const {
  for (const auto& file : files_) {
    // Adjacent ranges are merged, because a large page may span their border.
    std::uint64_t begin = 0, end = 0;
    for (const auto& [from, to] : file->mapped_granules) {
      if (from > end) {
        if (begin < end) file->mapping->expect(begin, end);
        begin = from;
      }
      end = std::max(end, to);
    }
    if (begin < end) file->mapping->expect(begin, end);
  }
}

Status Package::check_mapped(const TensorEntry& tensor, std::uint64_t first, std::span<const std::byte> bytes) const {
  const auto& file = files_[static_cast<std::size_t>(tensor.file)];
  const std::uint64_t begin = tensor.offset + first * tensor.granule_bytes;
  if (const Status status = file->mapping->populate(begin, bytes.size()); !status.ok()) {
    return status.with_context(fmt::format("tensor \"{}\"", tensor.name));
  }
  return check_granules(tensor, first, bytes);
}

Status Package::check_granules(const TensorEntry& tensor, std::uint64_t first, std::span<const std::byte> bytes) const {
  for (std::uint64_t granule = first; !bytes.empty(); ++granule) {
    const auto piece = bytes.first(std::min<std::uint64_t>(bytes.size(), tensor.granule_bytes));
    const auto hash = xxh3(piece);
    if (hash != tensor.granule_xxh3[static_cast<std::size_t>(granule)]) {
      return Status(StatusCode::kCorrupt, damaged_granule(manifest_, tensor, granule, hash));
    }
    bytes = bytes.subspan(piece.size());
  }
  return {};
}

std::vector<std::shared_ptr<const FileMapping>> Package::file_mappings() {
  std::vector<std::shared_ptr<const FileMapping>> mappings;
  for (const auto& file : files_) {
    if (file->mapping == nullptr) continue;
    std::uint64_t used_to = 0;
    for (const auto& [begin, end] : file->mapped_granules) {
      if (begin > used_to) file->mapping->release_pages(used_to, begin);
      used_to = std::max(used_to, end);
    }
    file->mapping->release_pages(used_to, file->mapping->bytes().size());
    mappings.push_back(file->mapping);
  }
  return mappings;
}

Status Package::read_granules(const TensorEntry& tensor, std::uint64_t first, std::uint64_t count,
                              std::span<std::byte> destination) {
  ACCORD_RETURN_IF_ERROR(check_range(tensor, first, count));
  if (count == 0) return {};
  const auto bytes = tensor.granule_range_bytes(first, count);
  if (destination.size() != bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("tensor \"{}\": granules of {} bytes do not fit into {} bytes", tensor.name, bytes,
                              destination.size()));
  }
  const auto index = static_cast<std::size_t>(tensor.file);
  const auto& entry = manifest_.weight_files[index];
  if (auto status = engine::read_granules(files_[index]->file, entry, tensor, first, count, destination);
      !status.ok()) {
    return status.with_context(fmt::format("tensor \"{}\"", tensor.name));
  }
  weight_bytes_read_ += bytes;
  return check_granules(tensor, first, destination);
}

}  // namespace accord::engine
