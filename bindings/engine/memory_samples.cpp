// Called before each run of a compiled model: the pieces are copied into one block and hashed together.
#include "bindings/engine/memory_samples.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/hash.hpp"

namespace accord::python {
namespace {

namespace nb = nanobind;

struct Piece {
  std::uint64_t address;
  std::uint64_t bytes;
};

std::uint64_t hash_of_pieces(const nb::bytes& pieces) {
  const auto* given = static_cast<const std::byte*>(pieces.data());
  std::vector<std::byte> copied;
  for (std::size_t at = 0; at + sizeof(Piece) <= pieces.size(); at += sizeof(Piece)) {
    Piece piece;
    std::memcpy(&piece, given + at, sizeof(piece));
    const auto* begin = reinterpret_cast<const std::byte*>(piece.address);
    copied.insert(copied.end(), begin, begin + piece.bytes);
  }
  return xxh3(copied);
}

}  // namespace

void bind_memory_samples(nb::module_& module) {
  module.def("hash_of_pieces", &hash_of_pieces, nb::arg("pieces"),
             R"(Returns a hash of pieces of this process's memory.

pieces: the address and the size in bytes of each, as two unsigned 64-bit numbers of this machine.)");
}

}  // namespace accord::python
