#pragma once
// Whether a call makes sense, by what one rank alone can see. kInvalidArgument and kWrongState name what does not.

#include "expert/group.hpp"

namespace accord::expert {

Status check(const ExpertRouting& routing, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertDispatch& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertCombine& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertDispatchBackward& call, const Handle& handle, const ExpertGroupConfig& config);
Status check(const ExpertCombineBackward& call, const Handle& handle, const ExpertGroupConfig& config);

}  // namespace accord::expert
