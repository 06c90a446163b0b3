#pragma once
// Argument checks that a rank can make on its own. The message of kInvalidArgument or kWrongState names the problem.

#include "accord/expert_parallel.hpp"
#include "expert/handle.hpp"

namespace accord::expert {

Status check(const ExpertRouting& routing, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertDispatch& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertCombine& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertDispatchBackward& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertCombineBackward& call, const Handle& handle, const ExpertGroupConfig& config);

}  // namespace accord::expert
