// Each tensor is mapped as it is in the file if the graph can use it that way. All mapped granules are read and
// checked at the end, by all threads. A sharded row-major tensor is stored as units, each a row-major block. Units
// along dimension 0 follow each other like the tensor's own rows. Units along another dimension are interleaved while
// they are copied out of the staging buffer. Row-major weights of matrix products are packed from there into panels,
// and nothing else of them is kept. Float8 weights become row-major first.
#include "engine/host/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/graph/node_access.hpp"
#include "engine/host/thread_pool.hpp"
#include "engine/package/package_folder.hpp"
#include "engine/program/row_major_reader.hpp"
#include "kernels/linear/pack.hpp"

namespace accord::engine::host {
namespace {

// Whether elements are read individually. An embedding reads them too if there is no packed weight.
bool is_row_major(const ParameterUse& use) { return use.plain || (use.table && !use.linear); }

std::uint64_t element_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

// Bytes that a thread reads and checks at a time.
constexpr std::uint64_t kPieceBytes = 4 << 20;

// Reading waits for the disk, so it helps to use more threads than compute, and more than there are cores. They end
// when the weights are loaded. A small model is not worth as many.
int loading_threads(int threads, std::uint64_t bytes) {
  constexpr int kMinThreads = 8, kMaxThreads = 16;
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int wanted = std::max(threads, std::clamp(cores, kMinThreads, kMaxThreads));
  return static_cast<int>(std::clamp<std::uint64_t>(bytes / kPieceBytes, 1, static_cast<std::uint64_t>(wanted)));
}

class Loader {
 public:
  Loader(Package* package, const Graph& graph, const std::vector<TensorPart>& parts, int threads,
         Contents contents = Contents::kRead)
      : package_(package), graph_(graph), parts_(parts), pool_(threads), reads_(contents == Contents::kRead) {}

  Result<Parameters> run() && {
    const std::vector<ParameterUse> uses = parameter_uses(graph_);
    parameters_.memory.resize(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!uses[i].any()) continue;
      ACCORD_ASSIGN_OR_RETURN(const TensorEntry* entry, package_->tensor(parts_[i].tensor));
      parameters_.memory[i].is_sharded = parts_[i].sharded;
      ACCORD_RETURN_IF_ERROR(with_reader(i, load(*entry, parts_[i], uses[i], parameters_.memory[i])));
      (parts_[i].sharded ? parameters_.bytes.sharded : parameters_.bytes.replicated) +=
          entry->granule_range_bytes(parts_[i].first_granule, parts_[i].granules);
    }
    if (reads_) ACCORD_RETURN_IF_ERROR(check());
    parameters_.mapped = package_->file_mappings();
    return std::move(parameters_);
  }

  Result<Parameters> reference(const std::map<std::string, TensorView>& weights) && {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<const TensorView*> given, weights_of(graph_, weights));
    const std::vector<ParameterUse> uses = parameter_uses(graph_);
    parameters_.memory.resize(parts_.size());
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const TensorView* const weight = given[i];
      if (!uses[i].any()) continue;
      const std::span rows(static_cast<const std::byte*>(weight->buffer.data), weight->buffer.bytes());
      if (is_row_major(uses[i])) parameters_.memory[i].plain = rows;
      TensorEntry entry;
      entry.name = parts_[i].tensor;
      entry.dtype = weight->buffer.dtype;
      ACCORD_RETURN_IF_ERROR(
          with_reader(i, pack_products(entry, parts_[i], uses[i], rows.data(), parameters_.memory[i])));
      parameters_.bytes.replicated += rows.size();
    }
    return std::move(parameters_);
  }

 private:
  // Granules that are mapped and must be checked.
  struct Mapped {
    const TensorEntry* entry;
    std::uint64_t first;
    std::span<const std::byte> bytes;
  };

  // Errors about a weight without a kernel name the first node that reads it.
  Status with_reader(std::size_t parameter, Status status) const {
    if (status.code() != StatusCode::kUnsupported) return status;
    for (const Node& node : graph_.nodes) {
      bool reads = false;
      for_each_input(node, [&](ValueId id) { reads = reads || id == graph_.parameters[parameter].value; });
      if (reads) return status.with_context(node_text(node));
    }
    return status;
  }

  Status load(const TensorEntry& entry, const TensorPart& part, const ParameterUse& use, ParameterMemory& memory) {
    if (entry.packing) return load_packed(entry, part, use, memory);
    std::span<const std::byte> rows;
    if (is_row_major(use)) {
      ACCORD_ASSIGN_OR_RETURN(rows, is_usable_in_place(entry) ? map(entry, part) : read_row_major_copy(entry, part));
      memory.plain = rows;
    } else if (reads_) {
      ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> staged, rows_.of(part_bytes(entry, part)));
      ACCORD_RETURN_IF_ERROR(read(entry, part, staged));
      rows = staged;
    }
    return pack_products(entry, part, use, reads_ ? rows.data() : nullptr, memory);
  }

  Status pack_products(const TensorEntry& entry, const TensorPart& part, const ParameterUse& use, const std::byte* rows,
                       ParameterMemory& memory) {
    if (use.experts) {
      ACCORD_ASSIGN_OR_RETURN(memory.experts, PackedStack::of_experts(rows, entry.dtype, part.shape, entry.name));
    }
    if (use.convolution > 0) {
      ACCORD_ASSIGN_OR_RETURN(memory.convolution,
                              PackedStack::of_convolution(rows, entry.dtype, part.shape, use.convolution, entry.name));
    }
    if (!use.linear && !use.product) return Status();
    if (!kernels::is_real(entry.dtype) || part.shape.size() != 2) {
      return Status(
          StatusCode::kUnsupported,
          fmt::format("tensor \"{}\": a matrix product needs real weights with two dimensions, not {} with {}",
                      entry.name, to_string(entry.dtype), part.shape.size()));
    }
    const std::int64_t first = part.shape[0], second = part.shape[1];
    if (use.linear) {
      ACCORD_ASSIGN_OR_RETURN(memory.linear, pack(entry, part.pieces, {rows, entry.dtype, first, second, second, 1}));
    }
    if (use.product) {
      ACCORD_ASSIGN_OR_RETURN(memory.product, pack(entry, part.pieces, {rows, entry.dtype, second, first, 1, second}));
    }
    return Status();
  }

  Status load_packed(const TensorEntry& entry, const TensorPart& part, const ParameterUse& use,
                     ParameterMemory& memory) {
    const std::int64_t groups = entry.packing->groups;
    const bool of_experts = entry.shape.size() == 3 && groups == 0, transposed = entry.packing->transposed;
    const bool as_matrix = use.linear || use.table;
    const bool as_packed = groups > 0   ? use.convolution == groups
                           : of_experts ? use.experts
                           : transposed ? use.product
                                        : as_matrix;
    const int uses = use.plain + as_matrix + use.product + use.experts + (use.convolution > 0);
    if (!as_packed || uses > 1) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("tensor \"{}\" is packed {}, but the graph uses it in another way", entry.name,
                                groups > 0   ? fmt::format("for a convolution of {} groups", groups)
                                : of_experts ? "for experts"
                                : transposed ? "as [in, out] of products"
                                             : "for linear layers"));
    }
    if (entry.packing->format.type == kernels::WeightType::kFloat8) {
      if (!reads_) return repack(entry, part, packed_part(entry, part, nullptr), memory);
      ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> blocks, units_.of(part_bytes(entry, part)));
      ACCORD_RETURN_IF_ERROR(package_->read_granules(entry, part.first_granule, part.granules, blocks));
      return repack(entry, part, packed_part(entry, part, blocks.data()), memory);
    }
    ACCORD_ASSIGN_OR_RETURN(const auto bytes, map(entry, part));
    PackedStack stack = packed_part(entry, part, bytes.data());
    if (groups > 0 || of_experts) {
      (groups > 0 ? memory.convolution : memory.experts) = std::move(stack);
    } else {
      (transposed ? memory.product : memory.linear) = stack.matrix(0);
    }
    return Status();
  }

  // Converts float8, which no product on the CPU reads, into panels of the dtype that the graph declares.
  Status repack(const TensorEntry& entry, const TensorPart& part, const PackedStack& matrices,
                ParameterMemory& memory) {
    const std::int64_t out = matrices.out(), in = matrices.in(), count = matrices.count();
    const std::size_t bytes = static_cast<std::size_t>(out * in) * size_of(entry.dtype);
    ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> rows,
                            rows_.of(reads_ ? bytes * static_cast<std::size_t>(count) : 0));
    for (std::int64_t i = 0; reads_ && i < count; ++i) {
      const std::span<std::byte> to = rows.subspan(static_cast<std::size_t>(i) * bytes, bytes);
      ACCORD_RETURN_IF_ERROR(pool_.run(pool_.threads(), [&](int share) {
        const PartRange outputs = part_range(out, 1, share, pool_.threads());
        kernels::unpack(matrices.matrix(i), outputs.first, outputs.last, entry.dtype, to);
        return Status();
      }));
    }
    if (part.shape.size() == 3) {
      ACCORD_ASSIGN_OR_RETURN(
          memory.experts, PackedStack::of_experts(reads_ ? rows.data() : nullptr, entry.dtype, part.shape, entry.name));
      return Status();
    }
    ACCORD_ASSIGN_OR_RETURN((entry.packing->transposed ? memory.product : memory.linear),
                            pack(entry, part.pieces, {reads_ ? rows.data() : nullptr, entry.dtype, out, in, in, 1}));
    return Status();
  }

  // Whether this rank's part is row-major in the file, aligned so that a kernel can read it.
  static bool is_usable_in_place(const TensorEntry& entry) {
    return (!entry.sharding || entry.sharding->dim == 0) && entry.offset % size_of(entry.dtype) == 0;
  }

  Result<std::span<const std::byte>> map(const TensorEntry& entry, const TensorPart& part) {
    ACCORD_ASSIGN_OR_RETURN(const auto bytes, package_->map_granules(entry, part.first_granule, part.granules));
    mapped_.push_back({&entry, part.first_granule, bytes});
    return bytes;
  }

  // Reads the part, row-major, into this process's own memory.
  Result<std::span<const std::byte>> read_row_major_copy(const TensorEntry& entry, const TensorPart& part) {
    ACCORD_ASSIGN_OR_RETURN(Region region, Region::allocate(part_bytes(entry, part), "tensor \"" + entry.name + "\""));
    ACCORD_RETURN_IF_ERROR(read(entry, part, region.bytes()));
    parameters_.regions.push_back(std::move(region));
    return std::span<const std::byte>(parameters_.regions.back().bytes());
  }

  Status read(const TensorEntry& entry, const TensorPart& part, std::span<std::byte> rows) {
    if (!reads_) return Status();
    return read_row_major(*package_, entry, part, units_, rows);
  }

  // `source` has the addresses of [out, in] in the row-major weight. Each of the `pieces` pieces of its inputs
  // becomes a block.
  Result<kernels::PackedMatrix> pack(const TensorEntry& entry, int pieces, const kernels::WeightSource& source) {
    const kernels::PackedFormat format = kernels::format_of(entry.dtype);
    kernels::WeightSource piece = source;
    piece.in /= pieces;
    const std::size_t bytes = kernels::packed_bytes(format, piece.out, piece.in);
    const std::size_t all_bytes = bytes * static_cast<std::size_t>(pieces);
    ACCORD_ASSIGN_OR_RETURN(Region region, Region::allocate(all_bytes, "tensor \"" + entry.name + "\""));
    for (int i = 0; piece.data != nullptr && i < pieces; ++i) {
      const auto block = region.bytes().subspan(static_cast<std::size_t>(i) * bytes, bytes);
      ACCORD_RETURN_IF_ERROR(pool_.run(pool_.threads(), [&](int part) {
        const PartRange outputs = part_range(piece.out, kernels::kPanelWidth, part, pool_.threads());
        return kernels::pack(piece, format, outputs.first, outputs.last, block).status();
      }));
      piece.data = static_cast<const std::byte*>(piece.data) +
                   piece.in * piece.in_stride * static_cast<std::int64_t>(size_of(piece.dtype));
    }
    parameters_.regions.push_back(std::move(region));
    kernels::PackedMatrix matrix =
        kernels::packed_matrix(format, piece.out, piece.in, parameters_.regions.back().data());
    matrix.in_units = pieces;
    matrix.in_unit_stride = static_cast<std::int64_t>(bytes);
    return matrix;
  }

  // Checks piece by piece, in the order of the files: while one thread waits for the disk, another one hashes. The
  // error names the first damaged piece, whichever thread finds one first.
  Status check() {
    std::vector<Mapped> pieces;
    for (Mapped rest : mapped_) {
      const std::uint64_t granules = std::max<std::uint64_t>(1, kPieceBytes / rest.entry->granule_bytes);
      for (; !rest.bytes.empty(); rest.first += granules) {
        const auto bytes = std::min<std::uint64_t>(rest.bytes.size(), granules * rest.entry->granule_bytes);
        pieces.push_back({rest.entry, rest.first, rest.bytes.first(bytes)});
        rest.bytes = rest.bytes.subspan(bytes);
      }
    }
    std::sort(pieces.begin(), pieces.end(), [](const Mapped& a, const Mapped& b) {
      return std::pair(a.entry->file, a.bytes.data()) < std::pair(b.entry->file, b.bytes.data());
    });
    package_->expect_mapped();
    return pool_.run(static_cast<int>(pieces.size()), [&](int i) {
      const Mapped& piece = pieces[static_cast<std::size_t>(i)];
      return package_->check_mapped(*piece.entry, piece.first, piece.bytes);
    });
  }

  Package* package_;  // nullptr if the weights are in memory
  const Graph& graph_;
  const std::vector<TensorPart>& parts_;
  ThreadPool pool_;
  const bool reads_;
  Staging rows_;
  Staging units_;
  std::vector<Mapped> mapped_;
  Parameters parameters_;
};

// Steps read plain weights where they are.
Parameters placed(Parameters parameters) {
  for (ParameterMemory& memory : parameters.memory) memory.address = const_cast<std::byte*>(memory.plain.data());
  return parameters;
}

}  // namespace

std::uint64_t planned_bytes(const Package& package, const Graph& graph, const std::vector<TensorPart>& parts) {
  const std::vector<ParameterUse> uses = parameter_uses(graph);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Result<const TensorEntry*> entry = package.tensor(parts[i].tensor);
    if (!uses[i].any() || !entry.ok()) continue;
    const auto& packing = (*entry)->packing;
    if (packing && packing->format.type == kernels::WeightType::kFloat8) {
      bytes += element_count(parts[i].shape) * size_of((*entry)->dtype);
    } else {
      bytes += part_bytes(**entry, parts[i]);
    }
  }
  return bytes;
}

Result<Parameters> load_parameters(Package& package, const Graph& graph, const std::vector<TensorPart>& parts,
                                   int threads, Contents contents) {
  const std::uint64_t bytes = contents == Contents::kRead ? planned_bytes(package, graph, parts) : 0;
  ACCORD_ASSIGN_OR_RETURN(Parameters loaded,
                          Loader(&package, graph, parts, loading_threads(threads, bytes), contents).run());
  return placed(std::move(loaded));
}

Result<Parameters> reference_parameters(const Graph& graph, const std::map<std::string, TensorView>& weights) {
  std::vector<TensorPart> parts;
  for (const Parameter& parameter : graph.parameters) {
    TensorPart part{parameter.tensor, {}, 0, 0, false};
    for (const SymbolicInt& size : graph.values[static_cast<std::size_t>(parameter.value)].shape)
      part.shape.push_back(size.constant());
    parts.push_back(std::move(part));
  }
  ACCORD_ASSIGN_OR_RETURN(Parameters taken, Loader(nullptr, graph, parts, 1).reference(weights));
  return placed(std::move(taken));
}

}  // namespace accord::engine::host
