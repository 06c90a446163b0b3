#pragma once
// The behavior that every CollectiveBackend must have on memory of devices. Each check is one rank's part; all ranks
// call the same checks in the same order.

#include "accord/communicator.hpp"
#include "device/device_memory.hpp"

namespace accord::testing {

/// Checks all dtypes and ops with the collectives that reduce, on integers, whose results do not depend on the
/// order of addition. A combination that the backend lacks must be rejected in the same way on all ranks and without
/// side effects. Returns the number of (dtype, op) pairs that the backend has.
int check_device_reductions(Communicator& comm, const OnDevice& on);
/// Checks all dtypes with the collectives that move bytes: from each root, in place as well, and with unequal counts.
void check_device_data_movement(Communicator& comm, const OnDevice& on);
/// The same checks for int32, bfloat16 and float32 only, for ranks that take turns on a device, where a call takes
/// milliseconds.
int check_device_reductions_of_few_dtypes(Communicator& comm, const OnDevice& on);
void check_device_data_movement_of_few_dtypes(Communicator& comm, const OnDevice& on);
/// Checks messages in separate calls, in one call, and between all ranks in any order.
void check_device_messages(Communicator& comm, const OnDevice& on);
/// Checks works, together with operations that are put into streams before and after them.
void check_device_works(Communicator& comm, const OnDevice& on);
/// Checks prepared calls, whose arguments are checked only once.
void check_device_prepared(Communicator& comm, const OnDevice& on);
/// Checks that calls that make no sense on devices are rejected.
void check_invalid_device_calls(Communicator& comm, const OnDevice& on);

}  // namespace accord::testing
