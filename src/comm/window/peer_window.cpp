// Each rank's memory begins with the counters of its channels: for each peer a line with the number of signals that
// have arrived from it, how many of them were taken, and how many were sent to it.
#include "accord/peer_window.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.hpp"
#include "comm/device/peer_memory.hpp"
#include "comm/device/stop_word.hpp"
#include "comm/group.hpp"
#include "device/runtime.hpp"

namespace accord {
namespace {

constexpr std::size_t kLine = 128;
constexpr std::size_t kArrived = 0, kConsumed = 8, kSent = 64;
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kMinShared = std::size_t{64} << 10;  // smallest size of shared memory

}  // namespace

struct PeerWindow::State {
  State(device::Runtime& runtime_, Device device_, std::size_t bytes_, const comm::Group& group)
      : runtime(runtime_),
        device(device_),
        bytes(bytes_),
        head(round_up(static_cast<std::size_t>(group.size()) * kLine, kAlignment)),
        rank(group.rank()) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  unsigned char* line(Rank of, Rank about) const {
    return reinterpret_cast<unsigned char*>(memory->of(of)) + static_cast<std::size_t>(about) * kLine;
  }
  std::uint64_t* word(Rank of, Rank about, std::size_t at) const {
    return reinterpret_cast<std::uint64_t*>(line(of, about) + at);
  }

  device::Runtime& runtime;
  const Device device;
  const std::size_t bytes;
  const std::size_t head;
  const Rank rank;
  std::unique_ptr<comm::PeerMemory> memory;
  std::shared_ptr<comm::StopWord> stop;
};

PeerWindow::PeerWindow(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<PeerWindow> PeerWindow::create(Communicator& communicator, std::size_t bytes, Device device,
                                      const CallOptions& options) {
  const std::shared_ptr<comm::Group>& group = communicator.group();
  ACCORD_ASSIGN_OR_RETURN(const auto open, group->keep_open("peer_window"));
  const auto wrong = [&](const Status& status) {
    return status.with_context(group->where(fmt::format("peer_window of {} bytes on {}", bytes, to_string(device))));
  };
  const Result<device::Runtime*> runtime = device::runtime_of(device.type);
  if (!runtime.ok()) return wrong(runtime.status());
  auto state = std::make_shared<State>(**runtime, device, bytes, *group);
  Result<std::shared_ptr<comm::StopWord>> stop = comm::StopWord::create(**runtime, device);
  const Deadline deadline = Deadline::in(options.timeout.value_or(group->options().timeout));
  Result<std::unique_ptr<comm::PeerMemory>> memory = comm::PeerMemory::create(
      *group, **runtime, device, std::max(state->head + bytes, kMinShared), deadline, stop.status());
  if (!memory.ok()) return wrong(memory.status());
  state->memory = *std::move(memory);
  state->stop = *std::move(stop);
  return PeerWindow(std::move(state));
}

std::size_t PeerWindow::bytes() const { return state_->bytes; }
Device PeerWindow::device() const { return state_->device; }
void* PeerWindow::memory(Rank rank) const { return state_->memory->of(rank) + state_->head; }

DeviceChannelHandle PeerWindow::channel(Rank peer) const {
  return {.local = static_cast<unsigned char*>(memory(state_->rank)),
          .remote = static_cast<unsigned char*>(memory(peer)),
          .sent = state_->word(state_->rank, peer, kSent),
          .taken = state_->word(state_->rank, peer, kConsumed),
          .arrived = state_->word(state_->rank, peer, kArrived),
          .at_peer = state_->word(peer, state_->rank, kArrived),
          .ending = state_->stop->get()};
}

void PeerWindow::end_waits() { state_->stop->set(); }

}  // namespace accord
