#include <fmt/format.h>

#include "accord/nccl.hpp"
#include "comm/group.hpp"
#include "comm/nccl/library.hpp"

namespace accord {

Status lend_nccl(Communicator& communicator, void* nccl_communicator) {
  comm::Group& group = *communicator.group();
  ACCORD_RETURN_IF_ERROR(group.used_after_fork());
  return group.device_channel().lend(static_cast<comm::nccl::Communicator*>(nccl_communicator));
}

Result<std::string> nccl_version() {
  ACCORD_ASSIGN_OR_RETURN(const comm::nccl::Library* const library, comm::nccl::library());
  return fmt::format("{} ({})", comm::nccl::version_text(library->version), library->path);
}

}  // namespace accord
