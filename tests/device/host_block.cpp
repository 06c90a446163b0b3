// Each thread of the host goes through all blocks of a run. Only the first block can start early: the others would need
// as many stacks.
#include "device/host_block.hpp"

#include <thread>

namespace accord::testing {

HostRun::HostRun(const HostBlocks& blocks)
    : blocks_(blocks),
      turns_(kTakeTurns ? std::make_unique<HostTurns>(blocks.threads, blocks.lanes) : nullptr),
      team_(blocks.threads, 0, turns_.get()),
      shared_(blocks.shared_bytes / sizeof(device::Words) + 1) {
  for (int first = 0; first < blocks.threads; first += blocks.lanes)
    warps_.emplace_back(blocks.lanes, first, turns_.get());
  std::memset(shared_.data(), 0xFF, shared_.size() * sizeof(device::Words));
}

HostRun::~HostRun() {
  if (has_begun_) finish();
}

void HostRun::begin() {
  if (turns_ == nullptr || !blocks_.starts_early) return;
  has_begun_ = true;
  turns_->begin([this](int thread) { run_thread(thread); });
}

void HostRun::finish() {
  if (turns_ != nullptr) {
    if (!std::exchange(has_begun_, false)) turns_->begin([this](int thread) { run_thread(thread); });
    return turns_->finish();
  }
  std::vector<std::thread> threads;
  for (int thread = 1; thread < blocks_.threads; ++thread) threads.emplace_back([this, thread] { run_thread(thread); });
  run_thread(0);
  for (std::thread& thread : threads) thread.join();
}

void HostRun::run_thread(int thread) {
  for (int block = blocks_.first; block < blocks_.last; ++block) {
    HostBlock one({.thread = thread,
                   .threads = blocks_.threads,
                   .block = block,
                   .blocks = blocks_.blocks,
                   .lanes = blocks_.lanes,
                   .may_wait = blocks_.may_wait,
                   .gate = blocks_.starts_early ? turns_.get() : nullptr},
                  team_, warps_[static_cast<std::size_t>(thread / blocks_.lanes)],
                  reinterpret_cast<std::byte*>(shared_.data()));
    blocks_.code(blocks_.arguments, one);
    if (blocks_.starts_early && !one.has_awaited()) {
      std::fputs("a thread of a kernel that starts early ends without await_earlier()\n", stderr);
      std::abort();
    }
    team_.sync(thread);  // the next block uses the same shared memory
  }
}

void run_blocks(const HostBlocks& blocks) { HostRun(blocks).finish(); }

}  // namespace accord::testing
