// Only rank 0 knows the length of a message, so the length is sent with the first bytes.
#include "engine/serving/communicator_channel.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::engine {
namespace {

constexpr std::uint64_t kMaxMessageBytes = std::uint64_t{1} << 30;

Buffer bytes_at(void* first, std::size_t count) { return {first, count, DType::kUInt8, {}}; }

}  // namespace

Status CommunicatorChannel::send(std::span<const std::byte> message) {
  packet_.length = message.size();
  const auto begin = message.first(std::min(message.size(), packet_.begin.size()));
  std::ranges::copy(begin, packet_.begin.begin());
  ACCORD_RETURN_IF_ERROR(communicator_.broadcast(bytes_at(&packet_, sizeof(packet_)), 0));
  if (message.size() == begin.size()) return Status();
  const auto rest = message.subspan(begin.size());
  rest_.assign(rest.begin(), rest.end());
  return communicator_.broadcast(bytes_at(rest_.data(), rest_.size()), 0);
}

Status CommunicatorChannel::receive(std::vector<std::byte>& message) {
  ACCORD_RETURN_IF_ERROR(communicator_.broadcast(bytes_at(&packet_, sizeof(packet_)), 0));
  if (packet_.length > kMaxMessageBytes)
    return Status(StatusCode::kCorrupt, fmt::format("a message from rank 0 has {} bytes; expected at most {}",
                                                    packet_.length, kMaxMessageBytes));
  message.resize(packet_.length);
  const std::size_t begin = std::min(message.size(), packet_.begin.size());
  std::copy_n(packet_.begin.begin(), begin, message.begin());
  if (message.size() == begin) return Status();
  return communicator_.broadcast(bytes_at(message.data() + begin, message.size() - begin), 0);
}

void CommunicatorChannel::fail(const Status& status) { communicator_.abort(status.to_string()); }

}  // namespace accord::engine
