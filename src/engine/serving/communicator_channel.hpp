#pragma once
// Sends plans by broadcast.

#include <array>
#include <cstddef>
#include <memory>

#include "accord/communicator.hpp"
#include "engine/serving/plan_channel.hpp"

namespace accord::engine {

/// A PlanChannel over a communicator, which the model's collectives may use too; its rank 0 sends. Messages of up to
/// 1,016 bytes are one broadcast of 1 KB; longer ones take a second broadcast. fail() aborts the communicator.
class CommunicatorChannel final : public PlanChannel {
 public:
  explicit CommunicatorChannel(Communicator communicator) : communicator_(std::move(communicator)) {}

  Status send(std::span<const std::byte> message) override;
  Status receive(std::vector<std::byte>& message) override;
  void fail(const Status& status) override;

 private:
  struct Packet {
    std::uint64_t length = 0;
    std::array<std::byte, 1016> begin{};
  };
  static_assert(sizeof(Packet) == 1024);

  Communicator communicator_;
  Packet packet_;
  std::vector<std::byte> rest_;
};

}  // namespace accord::engine
