#pragma once
// Sums on devices, for tests of what happens to calls.

#include <chrono>
#include <vector>

#include "conformance/comm/host_devices.hpp"

namespace accord::testing {

class DeviceSums : public HostDevices {
 protected:
  static CommunicatorOptions by_plans(std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    return {.timeout = timeout, .select = kByPlans, .hints = "max_ctas=3"};
  }
  static DeviceArray ones(const OnDevice& on) { return DeviceArray(on, std::vector<float>(64, 1.0F), DType::kFloat32); }
  static Call sum(const DeviceArray& values) {
    return Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
  }
  /// Connects the group by a first call.
  static void connect(Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
  }
};

}  // namespace accord::testing
