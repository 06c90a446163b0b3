#pragma once
// NCCL's communicators of a program's own, lent to accord's.

#include "accord/communicator.hpp"

namespace accord {

/// Makes `nccl_communicator`, an ncclComm_t over the same ranks in the same order, the one by which `communicator` makes its calls on GPUs, in the place
/// of one of its own. Before the first such call, and on all ranks; the first call finds a rank that did not (kMismatch).
///
/// It stays its owner's: it has to live longer than `communicator`, which never destroys or aborts it, so that calls whose peer is gone end only when
/// the owner aborts it. Device: that of the communicator. kInvalidArgument if its ranks are not those of `communicator`, kWrongState after the first
/// call, kNotFound or kUnsupported if there is no NCCL (docs/gpu.md).
[[nodiscard]] Status lend_nccl(Communicator& communicator, void* nccl_communicator);

/// Which NCCL this process has or would load: "2.29.7 (/usr/lib/.../libnccl.so.2)". kNotFound and kUnsupported say what is missing.
[[nodiscard]] Result<std::string> nccl_version();

}  // namespace accord
