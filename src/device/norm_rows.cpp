#include "device/norm_rows.hpp"

#include <algorithm>

namespace accord::device {

Status launch_norm(Runtime& runtime, const NormRows& norm, Device device, Stream stream) {
  constexpr std::int64_t kMaxBlocks = 4096;
  if (norm.rows == 0) return Status();
  const Grid grid{.blocks = static_cast<int>(std::min(norm.rows, kMaxBlocks)), .threads = NormRows::kThreads};
  return launch(runtime, norm, grid, device, stream);
}

}  // namespace accord::device
