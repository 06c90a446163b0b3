#pragma once
// Tensors in a safetensors file. `accord engine run` reads its inputs from one and writes its outputs to one.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::cli {

/// One tensor, row-major.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// Reads all tensors of the file at `path`, at most 1 GiB, in the order of their data. Fails with kCorrupt, which
/// names the file, the tensor and the problem: tensors must fill the file without gap or overlap, and each must have
/// exactly the bytes of its shape.
Result<std::vector<NamedTensor>> read_safetensors(const std::string& path);

/// Writes `tensors`, in their order, to `path`: as a whole or not at all.
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace accord::cli
