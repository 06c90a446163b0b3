#include "engine/runtime/targets.hpp"

#include "engine/gpu/target.hpp"
#include "engine/host/target.hpp"

namespace accord::engine {

Result<std::shared_ptr<const Target>> create_target(const LoadOptions& options) {
  if (options.device.type != DeviceType::kCpu) return gpu::create_target(options);
  return std::shared_ptr<const Target>(std::shared_ptr<const Target>(), &host::target());  // never deleted
}

}  // namespace accord::engine
