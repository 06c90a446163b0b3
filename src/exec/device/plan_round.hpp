#pragma once
// The position of a thread in its plan: the round of its instance, the memory in which the operands of steps are, and
// its waits.
//
// The bases of operands (exec/operand.hpp) are kept in the block's shared memory: the caller's buffers, the region of
// each member, and the buffers of peers once a signal has told where they are.

#include <cstring>

#include "device/kernel.hpp"
#include "exec/device/program.hpp"
#include "exec/device/waits.hpp"
#include "exec/operand.hpp"

namespace accord::exec {

/// Bytes of shared memory that a block of a plan uses.
constexpr std::size_t shared_bytes_of(const DeviceLayout& layout) {
  return sizeof(std::byte*) * static_cast<std::size_t>(Operand::bases(layout.members));
}

template <typename Block>
class PlanRound {
 public:
  ACCORD_ON_DEVICE PlanRound(Block& block, const DeviceExecution& run, const DeviceProgram& program)
      : block_(block), run_(run), program_(program), layout_(run.layout) {}

  ACCORD_ON_DEVICE Block& block() const { return block_; }
  ACCORD_ON_DEVICE const DeviceProgram& program() const { return program_; }
  ACCORD_ON_DEVICE int lane() const { return lane_; }
  ACCORD_ON_DEVICE std::uint64_t instance() const { return static_cast<std::uint64_t>(instance_); }
  /// Whether waits have been ended: nothing may be written any more, nor signalled as ready.
  ACCORD_ON_DEVICE bool ends() const { return ends_; }

  /// Called once, by all threads of the block: reads the state of the instance. If waits of an earlier kernel of this
  /// rank have been ended, that state is incomplete, and those of this one have ended too.
  ACCORD_ON_DEVICE void open() {
    lane_ = block_.block() % program_.lanes;
    instance_ = block_.block() / program_.lanes;
    std::byte* const state = run_.memory + layout_.region(instance_);
    // Kernels of one rank that run at the same time would count the same rounds. Calls in streams follow each other,
    // but launches of graphs are ordered by the program alone.
    if (block_.thread() == 0 && block_.add(word(state + DeviceLayout::kRunning), 1) >= program_.lanes)
      block_.store(run_.fault, 1);
    round_ = block_.load(word(state + DeviceLayout::kRounds));
    all_completed_ = block_.load(word(state + DeviceLayout::kAllCompleted));
    barriers_ = block_.load(word(state + DeviceLayout::kBarriers));
    for (int base = block_.thread(); base < Operand::bases(layout_.members); base += block_.threads())
      bases()[base] = first_base(base);
    ends_ = block_.any(block_.load(failed()) != 0);
  }
  /// Called once at the end: keeps the state for the next launch, or notes that there must be none.
  ACCORD_ON_DEVICE void close() const {
    if (block_.thread() != 0) return;
    std::byte* const state = own_region();
    if (ends_) {
      block_.store(failed(), 1);
    } else if (lane_ == 0) {
      block_.store(word(state + DeviceLayout::kRounds), round_);
      block_.store(word(state + DeviceLayout::kAllCompleted), all_completed_);
      block_.store(word(state + DeviceLayout::kBarriers), barriers_);
    }
    (void)block_.add(word(state + DeviceLayout::kRunning), ~std::uint64_t{0});
  }

  /// Begins the round of a slice: waits until all have completed the round plan::kRoundDepth rounds earlier.
  ACCORD_ON_DEVICE void begin(std::uint64_t slice) {
    ++round_;
    first_element_ = slice * program_.slice;
    if (round_ <= all_completed_ + plan::kRoundDepth) return;
    for (int m = block_.thread(); m < layout_.members; m += block_.threads()) {
      const std::uint64_t* const completed = word(own_region() + DeviceLayout::completed(m));
      if (m != run_.me) await([&] { return block_.load_acquire(completed) + plan::kRoundDepth >= round_; });
    }
    sync();
    all_completed_ = round_ - plan::kRoundDepth;
  }
  /// Notifies the peers that this rank has completed the round.
  ACCORD_ON_DEVICE void end() {
    sync_lanes();
    if (program_.reaches_all) all_completed_ = round_ - 1;
    if (lane_ != 0 || ends_) return;
    for (int m = block_.thread(); m < layout_.members; m += block_.threads())
      if (m != run_.me) block_.store_release(word(region_of(m) + DeviceLayout::completed(run_.me)), round_);
  }

  /// Waits for ready(), or until all waits are ended.
  template <typename Ready>
  ACCORD_ON_DEVICE void await(Ready ready) {
    if (!exec::await(block_, run_.ending, ends_, ready)) ends_ = true;
  }
  /// Synchronizes all threads of the block: if the waits of one have been ended, those of all have.
  ACCORD_ON_DEVICE void sync() { ends_ = block_.any(ends_); }
  /// Synchronizes all threads of all lanes of the instance.
  ACCORD_ON_DEVICE void sync_lanes() {
    sync();
    if (program_.lanes == 1) return;
    ++barriers_;
    std::byte* const state = own_region();
    if (block_.thread() == 0 && !ends_)
      block_.store_release(word(state + DeviceLayout::lane_barrier(lane_)), barriers_);
    for (int lane = block_.thread(); lane < program_.lanes; lane += block_.threads()) {
      const std::uint64_t* const its = word(state + DeviceLayout::lane_barrier(lane));
      await([&] { return block_.load_acquire(its) >= barriers_; });
    }
    sync();
  }

  /// In this round.
  ACCORD_ON_DEVICE std::byte* address(const DeviceOperand& operand) const {
    const auto base = static_cast<std::uint16_t>(operand.base);
    std::byte* const at = bases()[base] + operand.offset;
    if (is_buffer(base)) return at + first_element_ * program_.element_bytes;
    if (is_multicast(operand)) return at + layout_.multicast_slot(instance_, round_);
    return at + (Operand::is_slot(base) ? layout_.slot(round_) : layout_.lines(round_));
  }
  /// Calls visit(address, operand) for each destination of a step.
  template <typename Visit>
  ACCORD_ON_DEVICE void each_destination(const DeviceStep& step, Visit visit) const {
    for (int i = 0; i < step.destinations; ++i) {
      const DeviceOperand& operand = program_.destination(step, i);
      visit(address(operand), operand);
    }
  }
  /// Elements of the chunk that this round handles.
  ACCORD_ON_DEVICE std::size_t elements(const DeviceStep& step) const {
    if (step.length <= first_element_) return 0;
    const std::uint64_t left = step.length - first_element_;
    return static_cast<std::size_t>(left < program_.slice ? left : program_.slice);
  }
  ACCORD_ON_DEVICE bool is_multicast(const DeviceOperand& operand) const {
    return operand.base >= Operand::multicast_of(false, layout_.members);
  }
  ACCORD_ON_DEVICE bool is_of_every_rank(const DeviceOperand& operand) const {
    return operand.base == Operand::multicast_of(true, layout_.members);
  }

  /// A packet of this round with 8 bytes.
  ACCORD_ON_DEVICE device::Packet packet_of(std::uint64_t word) const {
    return {
        {{static_cast<std::uint32_t>(word), packet_flag()}, {static_cast<std::uint32_t>(word >> 32), packet_flag()}}};
  }
  ACCORD_ON_DEVICE bool has_arrived(const device::Packet& packet) const {
    return packet.half[0].flag == packet_flag() && packet.half[1].flag == packet_flag();
  }
  ACCORD_ON_DEVICE static std::uint64_t word_in(const device::Packet& packet) {
    return std::uint64_t{packet.half[1].data} << 32 | packet.half[0].data;
  }

  ACCORD_ON_DEVICE void signal(const DeviceStep& step) const {
    const bool tells_places = step.opcode == DeviceOpcode::kSignalPlaces;
    for (int i = block_.thread(); i < step.destinations && !ends_; i += block_.threads()) {
      const DeviceOperand& flag = program_.destination(step, i);
      block_.store_release(word(address(flag)), round_);
      if (!tells_places) continue;
      // After the flag, whose release would otherwise wait for these packets to arrive; the peer waits for both.
      auto* const to = packets_at(bases()[flag.base] + layout_.lines(round_) + layout_.places(run_.me));
      block_.store(to, packet_of(run_.input_place));
      block_.store(to + 1, packet_of(run_.output_place));
    }
  }
  ACCORD_ON_DEVICE void wait(const DeviceStep& step) {
    const bool gets_places = step.opcode == DeviceOpcode::kWaitPlaces;
    const int each = gets_places ? 2 : 1;
    for (int i = each * block_.thread(); i < step.sources; i += each * block_.threads()) {
      const std::uint64_t* const flag = word(address(program_.source(step, i)));
      await([&] { return block_.load_acquire(flag) >= round_; });
      if (gets_places) receive_places(static_cast<std::uint16_t>(program_.source(step, i + 1).base));
    }
  }

 private:
  ACCORD_ON_DEVICE bool is_buffer(std::uint16_t base) const {
    return base <= Operand::kOutput ||
           (base >= Operand::input_of(0, layout_.members) && base < Operand::multicast_of(false, layout_.members));
  }

  ACCORD_ON_DEVICE std::byte** bases() const { return reinterpret_cast<std::byte**>(block_.shared()); }
  ACCORD_ON_DEVICE std::uint64_t* failed() const { return word(run_.memory + layout_.failed()); }
  ACCORD_ON_DEVICE std::byte* own_region() const { return region_of(run_.me); }
  ACCORD_ON_DEVICE std::byte* region_of(int member) const { return bases()[Operand::lines_of(member)]; }
  /// An address that the head of this rank's memory contains.
  ACCORD_ON_DEVICE std::byte* listed(std::size_t offset) const {
    return reinterpret_cast<std::byte*>(*word(run_.memory + offset));
  }
  /// The value of a base at the beginning; null for buffers of peers.
  ACCORD_ON_DEVICE std::byte* first_base(int number) const {
    const auto base = static_cast<std::uint16_t>(number);
    if (base == Operand::kInput) return const_cast<std::byte*>(run_.input);
    if (base == Operand::kOutput) return run_.output;
    if (base < Operand::input_of(0, layout_.members))
      return listed(DeviceLayout::address_of(Operand::member_of(base))) + layout_.region(instance_);
    const int multicast = base - Operand::multicast_of(false, layout_.members);
    return multicast < 0 ? nullptr : listed(DeviceLayout::address_of(layout_.members + multicast));
  }

  ACCORD_ON_DEVICE static device::Packet* packets_at(std::byte* at) { return reinterpret_cast<device::Packet*>(at); }
  /// Never zero, so that memory never written is not a packet of a round.
  ACCORD_ON_DEVICE std::uint32_t packet_flag() const { return static_cast<std::uint32_t>(round_ << 1) | 1U; }
  /// Waits for the places of the buffers of a peer, whose input has the base `base`.
  ACCORD_ON_DEVICE void receive_places(std::uint16_t base) {
    const Rank peer = Operand::member_of_buffers(base, layout_.members);
    const device::Packet* const from = packets_at(own_region() + layout_.lines(round_) + layout_.places(peer));
    for (int i = 0; i < 2; ++i) {
      device::Packet packet = {};
      await([&] {
        packet = block_.load(from + i);
        return has_arrived(packet);
      });
      if (ends_) return;
      const PlaceWord place = word_in(packet);
      // In a window that this rank has released nothing can be reached: the call ends when all waits are ended.
      const bool is_released = place != kNoPlace && (run_.windows >> window_of(place) & 1) == 0;
      if (is_released) return await([] { return false; });
      bases()[base + i] =
          place == kNoPlace ? nullptr : listed(layout_.window(window_of(place), peer)) + offset_of(place);
    }
  }

  Block& block_;
  const DeviceExecution& run_;
  const DeviceProgram& program_;
  const DeviceLayout& layout_;
  int lane_ = 0;
  int instance_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t all_completed_ = 0;
  std::uint64_t barriers_ = 0;
  std::uint64_t first_element_ = 0;
  bool ends_ = false;
};

}  // namespace accord::exec
