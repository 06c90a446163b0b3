#pragma once
// The kinds of dispatchers. Only this file's source names them all.

#include <memory>

#include "expert/group_setup.hpp"
#include "expert/token_dispatcher.hpp"

namespace accord::expert {

/// Creates the dispatcher for the group's device, with the resources that are private to this rank. Fails with
/// kUnsupported or kInvalidArgument if the rank has no such device.
Result<std::unique_ptr<TokenDispatcher>> create_dispatcher(std::shared_ptr<const GroupSetup> setup);

}  // namespace accord::expert
