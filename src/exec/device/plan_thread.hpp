#pragma once
// The work of one thread in a plan: all threads of a block step through their lane together.
//
// A round: wait until all have completed the round plan::kRoundDepth rounds earlier, run the steps, notify the peers
// (device_layout.hpp). Flags and packets carry the round's number. Consecutive signals, waits and puts form a bundle,
// whose parts proceed concurrently. A waiting thread periodically reads a word of host memory that ends all waits
// when the group has failed. A thread that has seen it writes no more, and once a block has seen it, the block
// signals no data as ready: peers never use data that were not produced.
//
// Rounds are counted in the device's memory, so a launch in a graph is correct however often it is replayed.

#include <cstring>

#include "device/kernel.hpp"
#include "exec/device/elements.hpp"
#include "exec/device/moves.hpp"
#include "exec/device/program.hpp"
#include "exec/device/waits.hpp"
#include "exec/operand.hpp"

namespace accord::exec {

/// One thread of a kernel that runs a plan. Has a function for each kind of step, all of which are inlined.
template <typename Element, typename Block>
class PlanThread {
 public:
  using Stored = typename Element::Stored;
  using Sum = typename Element::Sum;

  ACCORD_ON_DEVICE PlanThread(Block& block, const DeviceExecution& run, const DeviceProgram& program)
      : block_(block), run_(run), program_(program), layout_(run.layout) {}

  /// Returns false if its waits have been ended.
  ACCORD_ON_DEVICE bool run() {
    lane_ = block_.block() % program_.lanes;
    const int instance = block_.block() / program_.lanes;
    instance_ = instance;
    region_ = layout_.region(instance);
    std::byte* const state = run_.memory + region_;
    // Kernels of one rank that run at the same time would count the same rounds. Calls in streams follow each other,
    // but launches of graphs are ordered by the program alone.
    if (block_.thread() == 0 && block_.add(word(state + DeviceLayout::kRunning), 1) >= program_.lanes)
      block_.store(run_.fault, 1);
    round_ = block_.load(word(state + DeviceLayout::kRounds));
    all_completed_ = block_.load(word(state + DeviceLayout::kAllCompleted));
    barriers_ = block_.load(word(state + DeviceLayout::kBarriers));
    for (auto slice = static_cast<std::uint64_t>(instance); slice < program_.slices;
         slice += static_cast<std::uint64_t>(run_.instances)) {
      first_element_ = slice * program_.slice;
      begin_round();
      run_lane();
      sync_lanes();
      end_round();
    }
    if (block_.thread() != 0) return !ends_;
    if (lane_ == 0) {
      block_.store(word(state + DeviceLayout::kRounds), round_);
      block_.store(word(state + DeviceLayout::kAllCompleted), all_completed_);
      block_.store(word(state + DeviceLayout::kBarriers), barriers_);
    }
    (void)block_.add(word(state + DeviceLayout::kRunning), ~std::uint64_t{0});
    return !ends_;
  }

 private:
  /// Elements that a thread handles at a time: those of one packet; wide elements occupy two.
  static constexpr int kPerThread = sizeof(Stored) < 8 ? 8 / static_cast<int>(sizeof(Stored)) : 1;

  ACCORD_ON_DEVICE std::byte* memory_of(int member) const {
    return reinterpret_cast<std::byte*>(*word(run_.memory + DeviceLayout::address_of(member)));
  }

  template <typename Ready>
  ACCORD_ON_DEVICE void await(Ready ready) {
    if (!exec::await(block_, run_.ending, ends_, ready)) ends_ = true;
  }

  /// Synchronizes all threads of the block: if the waits of one have been ended, those of all have.
  ACCORD_ON_DEVICE void sync() { ends_ = block_.any(ends_); }

  ACCORD_ON_DEVICE void begin_round() {
    ++round_;
    if (round_ <= all_completed_ + plan::kRoundDepth) return;
    std::byte* const mine = run_.memory + region_;
    for (int m = block_.thread(); m < layout_.members; m += block_.threads()) {
      const std::uint64_t* const completed = word(mine + DeviceLayout::completed(m));
      if (m != run_.me) await([&] { return block_.load_acquire(completed) + plan::kRoundDepth >= round_; });
    }
    sync();
    all_completed_ = round_ - plan::kRoundDepth;
  }

  ACCORD_ON_DEVICE void end_round() {
    if (program_.reaches_all) all_completed_ = round_ - 1;
    if (lane_ != 0 || ends_) return;
    for (int m = block_.thread(); m < layout_.members; m += block_.threads())
      if (m != run_.me) block_.store_release(word(memory_of(m) + region_ + DeviceLayout::completed(run_.me)), round_);
  }

  /// Synchronizes all threads of all lanes of the instance.
  ACCORD_ON_DEVICE void sync_lanes() {
    sync();
    if (program_.lanes == 1) return;
    ++barriers_;
    std::byte* const state = run_.memory + region_;
    if (block_.thread() == 0 && !ends_)
      block_.store_release(word(state + DeviceLayout::lane_barrier(lane_)), barriers_);
    for (int lane = block_.thread(); lane < program_.lanes; lane += block_.threads()) {
      const std::uint64_t* const its = word(state + DeviceLayout::lane_barrier(lane));
      await([&] { return block_.load_acquire(its) >= barriers_; });
    }
    sync();
  }

  ACCORD_ON_DEVICE const DeviceStep& step(int index) const {
    return *reinterpret_cast<const DeviceStep*>(program_.words.data() + DeviceProgram::steps_at(program_.lanes) +
                                                sizeof(DeviceStep) * static_cast<std::size_t>(index));
  }
  ACCORD_ON_DEVICE int lane_begin(int lane) const {
    return *reinterpret_cast<const std::uint16_t*>(program_.words.data() + 2 * static_cast<std::size_t>(lane));
  }
  ACCORD_ON_DEVICE const DeviceOperand& source(const DeviceStep& step, int index) const {
    const std::byte* const operands = program_.words.data() + DeviceProgram::steps_at(program_.lanes) +
                                      sizeof(DeviceStep) * static_cast<std::size_t>(program_.steps);
    return *reinterpret_cast<const DeviceOperand*>(
        operands + sizeof(DeviceOperand) * (step.first_source + static_cast<std::size_t>(index)));
  }

  /// In the current round.
  ACCORD_ON_DEVICE std::byte* address(const DeviceOperand& operand) const {
    const std::size_t slice_at = first_element_ * program_.element_bytes;
    const auto base = static_cast<std::uint16_t>(operand.base);
    if (base == Operand::kInput) return const_cast<std::byte*>(run_.input) + slice_at + operand.offset;
    if (base == Operand::kOutput) return run_.output + slice_at + operand.offset;
    if (is_multicast(operand)) {
      const int which = base - Operand::multicast_of(false, layout_.members);
      return memory_of(layout_.members + which) + layout_.multicast_slot(instance_, round_) + operand.offset;
    }
    const std::size_t block = Operand::is_slot(base) ? layout_.slot(round_) : layout_.lines(round_);
    return memory_of(Operand::member_of(base)) + region_ + block + operand.offset;
  }
  ACCORD_ON_DEVICE std::size_t elements(const DeviceStep& step) const {
    if (step.length <= first_element_) return 0;
    const std::uint64_t left = step.length - first_element_;
    return static_cast<std::size_t>(left < program_.slice ? left : program_.slice);
  }

  ACCORD_ON_DEVICE void run_lane() {
    const int end = lane_begin(lane_ + 1);
    for (int i = lane_begin(lane_); i < end;) {
      const DeviceStep& now = step(i);
      int last = i + 1;
      if (now.opcode == DeviceOpcode::kSignal || now.opcode == DeviceOpcode::kWait || now.opcode == DeviceOpcode::kPut)
        while (last < end && step(last).opcode == now.opcode) ++last;
      run_bundle(now, i, last);
      i = last;
    }
  }

  ACCORD_ON_DEVICE void run_bundle(const DeviceStep& now, int first, int last) {
    switch (now.opcode) {
      case DeviceOpcode::kMove: move(now); break;
      case DeviceOpcode::kMoveBySwitch: move_by_switch(now); break;
      case DeviceOpcode::kCopyPackets: copy_packets(now); break;
      case DeviceOpcode::kReduce: reduce(now); break;
      case DeviceOpcode::kPut:
        for (int i = first; i < last && !ends_; ++i) put_packets(step(i));
        break;
      case DeviceOpcode::kSignal:
        for (int i = first + block_.thread(); i < last && !ends_; i += block_.threads())
          block_.store_release(word(address(step(i).destination)), round_);
        return;
      case DeviceOpcode::kWait:
        for (int i = first + block_.thread(); i < last; i += block_.threads()) {
          const std::uint64_t* const flag = word(address(step(i).destination));
          await([&] { return block_.load_acquire(flag) >= round_; });
        }
        break;
      case DeviceOpcode::kLaneBarrier: sync_lanes(); return;
    }
    sync();
  }

  ACCORD_ON_DEVICE bool is_multicast(const DeviceOperand& operand) const {
    return operand.base >= Operand::multicast_of(false, layout_.members);
  }
  ACCORD_ON_DEVICE SwitchPlace switch_place(const DeviceOperand& operand) const {
    return {address(operand), operand.base == Operand::multicast_of(true, layout_.members)};
  }

  ACCORD_ON_DEVICE void move(const DeviceStep& now) const {
    if (ends_) return;
    const DeviceOperand& from = source(now, 0);
    const std::size_t bytes = elements(now) * (from.partial ? sizeof(Sum) : sizeof(Stored));
    std::byte* const mirror = now.destinations > 1 ? address(now.mirror) : nullptr;
    move_bytes(block_, address(from), address(now.destination), mirror, bytes);
  }

  /// Only this step accesses multicast by the address of all ranks, so of any two accesses by different addresses,
  /// one is fenced here.
  ACCORD_ON_DEVICE void move_by_switch(const DeviceStep& now) const {
    if (ends_) return;
    const SwitchPlace mirror = now.destinations > 1 ? switch_place(now.mirror) : SwitchPlace{};
    block_.fence_multicast();
    exec::move_by_switch<kSwitchSum<Element>>(block_, switch_place(source(now, 0)), switch_place(now.destination),
                                              mirror, elements(now) * sizeof(Stored));
    block_.fence_multicast();
  }

  /// Never zero, so that memory never written is not a packet of this round.
  ACCORD_ON_DEVICE std::uint32_t packet_flag() const { return static_cast<std::uint32_t>(round_ << 1) | 1U; }

  ACCORD_ON_DEVICE void put_packets(const DeviceStep& now) const {
    const std::size_t bytes = elements(now) * sizeof(Stored);
    const std::byte* const from = address(source(now, 0));
    auto* const to = reinterpret_cast<device::Packet*>(address(now.destination));
    const bool whole_words = is_aligned(from, 8);
    for (auto i = static_cast<std::size_t>(block_.thread()); 8 * i < bytes;
         i += static_cast<std::size_t>(block_.threads())) {
      std::uint32_t data[2] = {};
      if (whole_words && 8 * i + 8 <= bytes) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(from + 8 * i);
        data[0] = words[0], data[1] = words[1];
      } else {
        auto* const each = reinterpret_cast<std::byte*>(data);
        for (std::size_t b = 0; b < 8 && 8 * i + b < bytes; ++b) each[b] = from[8 * i + b];
      }
      block_.store(to + i, device::Packet{{{data[0], packet_flag()}, {data[1], packet_flag()}}});
    }
  }

  /// Reads the data of the packets at `at` and returns whether they have arrived.
  template <int kBytes>
  ACCORD_ON_DEVICE bool try_read_packets(const device::Packet* at, std::byte* data) const {
    const std::uint32_t flag = packet_flag();
    bool arrived = true;
    for (int i = 0; i < kBytes / 8; ++i) {
      const device::Packet packet = block_.load(at + i);
      arrived = arrived && packet.half[0].flag == flag && packet.half[1].flag == flag;
      const std::uint32_t words[2] = {packet.half[0].data, packet.half[1].data};
      std::memcpy(data + 8 * i, words, 8);
    }
    return arrived;
  }

  ACCORD_ON_DEVICE void copy_packets(const DeviceStep& now) {
    const std::size_t bytes = elements(now) * sizeof(Stored);
    const auto* const from = reinterpret_cast<const device::Packet*>(address(source(now, 0)));
    std::byte* const to = address(now.destination);
    std::byte* const mirror = now.destinations > 1 ? address(now.mirror) : nullptr;
    for (auto i = static_cast<std::size_t>(block_.thread()); 8 * i < bytes;
         i += static_cast<std::size_t>(block_.threads())) {
      alignas(8) std::byte data[8];
      await([&] { return try_read_packets<8>(from + i, data); });
      if (ends_) return;
      const std::size_t many = bytes - 8 * i < 8 ? bytes - 8 * i : 8;
      store_bytes(data, to + 8 * i, many);
      if (mirror != nullptr) store_bytes(data, mirror + 8 * i, many);
    }
  }

  template <int kCount>
  using Sums = Several<Sum, kCount>;

  /// Elements of one source in their stored form, or as sums if it holds sums; for packets, the result of a first
  /// look.
  template <int kCount>
  struct Fetched {
    alignas(sizeof(Several<Stored, kCount>)) Several<Stored, kCount> stored = {};
    Sums<kCount> sums = {};
    bool arrived = true;
  };

  template <int kCount>
  ACCORD_ON_DEVICE const device::Packet* packets_of(const DeviceOperand& operand, std::size_t first) const {
    return reinterpret_cast<const device::Packet*>(address(operand)) +
           first * sizeof(Stored) / DeviceLayout::kPacketData;
  }
  template <int kCount>
  ACCORD_ON_DEVICE bool try_read(const DeviceOperand& operand, std::size_t first, Fetched<kCount>& to) const {
    constexpr int kBytes = kCount * static_cast<int>(sizeof(Stored));
    return try_read_packets<kBytes>(packets_of<kCount>(operand, first), reinterpret_cast<std::byte*>(&to.stored));
  }

  /// Fetches elements from `first` on, of which `many` exist; the others are zeros. Loops run over all, so that the
  /// results stay in registers.
  template <int kCount>
  ACCORD_ON_DEVICE Fetched<kCount> fetch(const DeviceOperand& operand, std::size_t first, int many) const {
    Fetched<kCount> fetched;
    if (operand.packets) {
      fetched.arrived = try_read<kCount>(operand, first, fetched);
    } else if (operand.partial) {
      const auto* const wide = reinterpret_cast<const Sum*>(address(operand)) + first;
      for (int i = 0; i < kCount; ++i)
        if (i < many) fetched.sums.x[i] = wide[i];
    } else {
      load_several(address(operand) + first * sizeof(Stored), many, fetched.stored);
    }
    return fetched;
  }

  /// The same as sums, once everything has arrived.
  template <int kCount>
  ACCORD_ON_DEVICE Sums<kCount> as_sums(Fetched<kCount>& fetched, const DeviceOperand& operand, std::size_t first) {
    if (operand.partial) return fetched.sums;
    if (!fetched.arrived) await([&] { return try_read<kCount>(operand, first, fetched); });
    Sums<kCount> sums;
    for (int i = 0; i < kCount; ++i) sums.x[i] = Element::widen(fetched.stored.x[i]);
    return sums;
  }

  template <int kCount>
  ACCORD_ON_DEVICE void store(const Sums<kCount>& sums, const DeviceOperand& operand, std::size_t first,
                              int many) const {
    if (ends_) return;
    std::byte* const at = address(operand);
    if (operand.partial) {
      auto* const wide = reinterpret_cast<Sum*>(at) + first;
      for (int i = 0; i < kCount; ++i)
        if (i < many) wide[i] = sums.x[i];
      return;
    }
    Several<Stored, kCount> stored;
    for (int i = 0; i < kCount; ++i) stored.x[i] = Element::narrow(sums.x[i]);
    store_several(stored, at + first * sizeof(Stored), many);
  }

  template <int kCount>
  ACCORD_ON_DEVICE Sums<kCount> combine(Sums<kCount> a, const Sums<kCount>& b) const {
    for (int i = 0; i < kCount; ++i) a.x[i] = Element::combine(program_.op, a.x[i], b.x[i]);
    return a;
  }

  /// The balanced tree over kSources, a power of two. All are read before the first wait.
  template <int kCount, int kSources>
  ACCORD_ON_DEVICE Sums<kCount> tree(const DeviceStep& now, std::size_t first, int many) {
    Fetched<kCount> fetched[kSources];
    for (int i = 0; i < kSources; ++i) fetched[i] = fetch<kCount>(source(now, i), first, many);
    Sums<kCount> sums[kSources];
    for (int i = 0; i < kSources; ++i) sums[i] = as_sums<kCount>(fetched[i], source(now, i), first);
    for (int apart = 1; apart < kSources; apart *= 2)
      for (int i = 0; i + apart < kSources; i += 2 * apart) sums[i] = combine<kCount>(sums[i], sums[i + apart]);
    return sums[0];
  }

  /// The tree over all sources: trees of equal size are combined as in a binary counter, and the rest is folded from
  /// the smaller ones (kernels/reduce/loops_simd.hpp).
  template <int kCount>
  ACCORD_ON_DEVICE Sums<kCount> tree_of_many(const DeviceStep& now, std::size_t first, int many) {
    Sums<kCount> stack[17];
    int height = 0;
    for (int i = 0; i < now.sources; ++i) {
      Fetched<kCount> fetched = fetch<kCount>(source(now, i), first, many);
      Sums<kCount> sums = as_sums<kCount>(fetched, source(now, i), first);
      for (unsigned carry = static_cast<unsigned>(i); (carry & 1U) != 0; carry >>= 1)
        sums = combine<kCount>(stack[--height], sums);
      stack[height++] = sums;
    }
    Sums<kCount> sums = stack[--height];
    while (height > 0) sums = combine<kCount>(stack[--height], sums);
    return sums;
  }

  template <int kCount>
  ACCORD_ON_DEVICE void reduce_by(const DeviceStep& now) {
    const std::size_t count = elements(now);
    const auto stride = static_cast<std::size_t>(block_.threads()) * kCount;
    for (std::size_t first = static_cast<std::size_t>(block_.thread()) * kCount; first < count; first += stride) {
      const int many = count - first < kCount ? static_cast<int>(count - first) : kCount;
      Sums<kCount> sums;
      switch (now.sources) {
        case 2: sums = tree<kCount, 2>(now, first, many); break;
        case 4: sums = tree<kCount, 4>(now, first, many); break;
        case 8: sums = tree<kCount, 8>(now, first, many); break;
        default: sums = tree_of_many<kCount>(now, first, many);
      }
      if (program_.op == ReduceOp::kAvg)
        for (int i = 0; i < kCount; ++i) sums.x[i] = Element::divide(sums.x[i], now.sources);
      store<kCount>(sums, now.destination, first, many);
      if (now.destinations > 1) store<kCount>(sums, now.mirror, first, many);
    }
  }

  ACCORD_ON_DEVICE void reduce(const DeviceStep& now) { reduce_by<kPerThread>(now); }

  Block& block_;
  const DeviceExecution& run_;
  const DeviceProgram& program_;
  const DeviceLayout& layout_;
  int lane_ = 0;
  int instance_ = 0;
  std::size_t region_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t all_completed_ = 0;
  std::uint64_t barriers_ = 0;
  std::uint64_t first_element_ = 0;
  bool ends_ = false;
};

}  // namespace accord::exec
