#include "expert/dispatchers.hpp"

#include "expert/device/device_dispatcher.hpp"
#include "expert/host/host_dispatcher.hpp"

namespace accord::expert {

Result<std::unique_ptr<TokenDispatcher>> create_dispatcher(std::shared_ptr<const GroupSetup> setup) {
  if (setup->config.device.type != DeviceType::kCpu) return DeviceDispatcher::create(std::move(setup));
  return std::unique_ptr<TokenDispatcher>(std::make_unique<HostDispatcher>(std::move(setup)));
}

}  // namespace accord::expert
