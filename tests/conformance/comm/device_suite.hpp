#pragma once
// What every CollectiveBackend gives on a device's memory. Each check is one rank's part; all ranks call the same ones in the same order.

#include "accord/communicator.hpp"
#include "device/device_memory.hpp"

namespace accord::testing {

/// All dtypes and ops through the collectives that reduce, on whole numbers, whose results no order of adding changes; what the backend has
/// not is refused, in the same way on all ranks, and harms nothing. Gives how many pairs of both it has.
int check_device_reductions(Communicator& comm, const OnDevice& on);
/// All dtypes through the collectives that move bytes, from each root, in place too, and with parts of unequal counts.
void check_device_moves(Communicator& comm, const OnDevice& on);
/// The same of bool, int32, bfloat16 and float32 alone, for ranks that take turns on a device: there a call takes milliseconds.
int check_device_reductions_of_few_dtypes(Communicator& comm, const OnDevice& on);
void check_device_moves_of_few_dtypes(Communicator& comm, const OnDevice& on);
/// Messages one by one, at once, and of all ranks in any order.
void check_device_messages(Communicator& comm, const OnDevice& on);
/// Works, and what is put into streams before and behind them.
void check_device_works(Communicator& comm, const OnDevice& on);
/// Calls that were checked once.
void check_device_prepared(Communicator& comm, const OnDevice& on);
/// Calls that make no sense for devices.
void check_device_mistakes(Communicator& comm, const OnDevice& on);

}  // namespace accord::testing
