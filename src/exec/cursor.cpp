// A round: wait at the domain's gate, publish the request, run every lane's steps until each has ended, mark the
// round completed. A step that cannot proceed leaves its lane in place, and the next poll resumes there. Signals are
// stores and waits are loads of the round word; a word of this round with a different request history is a mismatch.
//
// The inputs of a premul_sum travel unchanged, with their factors in the record lines. The adding rank multiplies, in
// the precision of the sum: 16-bit values are rounded once, and no extra bytes are copied or moved.
#include "exec/cursor.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>

#include "base/wait.hpp"
#include "exec/peer_memory.hpp"

namespace accord::exec {
namespace {

std::size_t lines_of(std::uint64_t elements, const LoweredPlan& plan) {
  if (elements <= plan.elements_per_line) return 1;  // spares a division
  return (elements + plan.elements_per_line - 1) / plan.elements_per_line;
}

}  // namespace

void Cursor::start(Domain& domain, const LoweredPlan& plan, const void* input, void* output,
                   std::complex<double> factor, const Placement& placement, Rank tag) {
  if (domain_ != &domain || plan_number_ != plan.number) make_room(domain, plan);
  plan_ = &plan;
  placement_ = &placement;
  bases_[Operand::kInput] = static_cast<std::byte*>(const_cast<void*>(input));
  bases_[Operand::kOutput] = static_cast<std::byte*>(output);
  factor_ = factor;
  tag_ = tag;
  rounds_done_ = 0;
  elements_done_ = 0;
  in_round_ = false;
  mismatch_ = false;
  waiting_for_ = -1;
  unknown_window_ = -1;
  read_error_ = 0;
}

void Cursor::make_room(Domain& domain, const LoweredPlan& plan) {
  domain_ = &domain;
  plan_number_ = plan.number;
  bases_.resize(plan.in_windows ? Operand::input_of(domain.members(), domain.members())
                                : Operand::lines_of(domain.members()));
  if (plan.in_windows && sum_stores_ == nullptr) sum_stores_ = std::make_unique<StoreChooser>();
  if (sources_.size() < static_cast<std::size_t>(plan.max_sources)) sources_.resize(plan.max_sources);
  if (plan.partials.reduce != nullptr) {
    partial_sums_.reserve(plan.max_sources);
    partial_sources_.resize(std::max<std::size_t>(partial_sources_.size(), plan.max_sources));
  }
  if (plan.scales && factors_.size() < sources_.size()) factors_.resize(sources_.size());
  lanes_.resize(plan.lanes.size());
  barrier_arrivals_.resize(plan.barriers);
}

void Cursor::begin_round() {
  if (tag_ != 0) [[unlikely]]
    domain_->begin_tagged_round(plan_->record, plan_->signature, tag_, plan_->packets);
  else
    domain_->begin_round(plan_->record, plan_->signature, factor_, plan_->packets);
  word_ = domain_->current_word();
  for (int m = 0; m < domain_->members(); ++m) {
    bases_[Operand::lines_of(m)] = domain_->lines(m);
    bases_[Operand::slot_of(m)] = domain_->slot(m);
  }
  std::fill(lanes_.begin(), lanes_.end(), LaneState{});
  std::fill(barrier_arrivals_.begin(), barrier_arrivals_.end(), 0);
  in_round_ = true;
  ++position_;
}

Progress Cursor::poll(PollLimits limits) {
  limits_ = lanes_.size() == 1 ? limits : PollLimits{};
  while (true) {
    if (!in_round_) {
      if (!domain_->gate_open(plan_->depth)) {
        waiting_for_ = domain_->laggard();
        return wait_for_remotes(domain_->differs() ? Progress::kMismatch : Progress::kPending);
      }
      begin_round();
    }
    bool pending = false;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      const Progress progress = poll_lane(lane);
      if (progress == Progress::kMismatch) return wait_for_remotes(progress);
      pending |= progress == Progress::kPending;
    }
    if (pending) return wait_for_remotes(Progress::kPending);
    domain_->end_round(plan_->reaches_all, plan_->depth);
    in_round_ = false;
    if (++rounds_done_ == plan_->rounds) return wait_for_remotes(Progress::kDone);
    elements_done_ += plan_->slice;
    const std::size_t slice_bytes = plan_->slice * plan_->element_bytes;
    if (bases_[Operand::kInput] != nullptr) bases_[Operand::kInput] += slice_bytes;
    if (bases_[Operand::kOutput] != nullptr) bases_[Operand::kOutput] += slice_bytes;
  }
}

std::uint64_t Cursor::elements(const LoweredStep& step) const {
  if (step.length <= elements_done_) return 0;
  return std::min(plan_->slice, step.length - elements_done_);
}

bool Cursor::word_arrived(std::byte* address, int from) {
  const std::atomic_ref<std::uint64_t> word = Domain::word(address);
  std::uint64_t found = word.load(std::memory_order_acquire);
  for (std::uint32_t checks = 1; found != word_ && checks < limits_.checks; ++checks) {
    cpu_relax();
    found = word.load(std::memory_order_acquire);
  }
  if (found == word_) [[likely]]
    return true;
  waiting_for_ = from;
  mismatch_ = found != 0 && same_round(found, word_);
  return false;
}

void Cursor::limit_checks(const std::vector<LoweredStep>& steps, std::size_t next) {
  if (limits_.missing >= domain_->members() || limits_.checks == 1) [[likely]]
    return;
  int missing = 0;
  for (std::size_t i = next; i < steps.size() && missing <= limits_.missing; ++i) missing += missing_in(steps[i]);
  if (missing > limits_.missing) limits_.checks = 1;
}

int Cursor::missing_in(const LoweredStep& step) const {
  const auto is_missing = [this](std::byte* at) {
    return Domain::word(at).load(std::memory_order_acquire) != word_ ? 1 : 0;
  };
  if (step.opcode == Opcode::kWait || step.opcode == Opcode::kWaitPlaces) return is_missing(address(step.destination));
  if (step.opcode != Opcode::kCopyPackets && step.opcode != Opcode::kReducePackets) return 0;
  const auto operands = std::span(plan_->operands).subspan(step.first_source, step.sources);
  return std::accumulate(operands.begin(), operands.end(), 0, [&](int missing, const Operand& operand) {
    return missing + (operand.packets ? is_missing(address(operand) + plan_->packet_data) : 0);
  });
}

Progress Cursor::poll_lane(std::size_t index) {
  const std::vector<LoweredStep>& steps = plan_->lanes[index];
  LaneState& state = lanes_[index];
  while (state.next < steps.size()) {
    const LoweredStep& step = steps[state.next];
    switch (step.opcode) {
      case Opcode::kCopy: {
        const std::byte* source = address(plan_->operands[step.first_source]);
        const std::size_t bytes = elements(step) * plan_->element_bytes;
        copy(step.destination, source, bytes);
        if (step.has_mirror) copy(step.mirror, source, bytes);
        break;
      }
      case Opcode::kCopyFromPeer: {
        const Progress progress = copy_from_peer(step);
        if (progress != Progress::kDone) return progress;
        break;
      }
      case Opcode::kReduce: {
        const std::uint64_t count = elements(step);
        if (count == 0) break;
        for (std::uint16_t i = 0; i < step.sources; ++i) sources_[i] = address(plan_->operands[step.first_source + i]);
        reduce(step, count);
        break;
      }
      case Opcode::kReducePartials: reduce_partials(step, elements(step)); break;
      case Opcode::kSignal: Domain::word(address(step.destination)).store(word_, std::memory_order_release); break;
      case Opcode::kWait:
        limit_checks(steps, state.next);
        if (!word_arrived(address(step.destination), step.peer))
          return mismatch_ ? Progress::kMismatch : Progress::kPending;
        break;
      case Opcode::kSignalPlaces: {
        std::byte* const line = address(step.destination);
        publish_places(line);
        Domain::word(line).store(word_, std::memory_order_release);
        break;
      }
      case Opcode::kWaitPlaces: {
        limit_checks(steps, state.next);
        std::byte* const line = address(step.destination);
        if (!word_arrived(line, step.peer)) return mismatch_ ? Progress::kMismatch : Progress::kPending;
        if (!read_places(line, step.peer)) [[unlikely]]
          return Progress::kMismatch;
        break;
      }
      case Opcode::kPutPackets:
      case Opcode::kCopyPackets:
      case Opcode::kReducePackets: {
        limit_checks(steps, state.next);
        const Progress progress = run_packets(step, state);
        if (progress != Progress::kDone) return progress;
        break;
      }
      case Opcode::kLaneBarrier:
        if (!barrier_passed(step, state)) return Progress::kPending;
        break;
      case Opcode::kPutRemote:
      case Opcode::kSignalRemote:
      case Opcode::kPutPacketsRemote:
        if (run_remote(step, state) != Progress::kDone) return Progress::kPending;
        break;
    }
    ++state.next;
    ++position_;
  }
  return Progress::kDone;
}

// A flag has its own line, and the words after it travel with it.
void Cursor::publish_places(std::byte* flag_line) const {
  const std::uint64_t done = elements_done_ * plan_->element_bytes;
  const auto now = [done](PlaceWord place) { return place == kNoPlace ? place : place + done; };
  Domain::word(flag_line + 8).store(now(placement_->input), std::memory_order_relaxed);
  Domain::word(flag_line + 16).store(now(placement_->output), std::memory_order_relaxed);
}

bool Cursor::read_places(std::byte* flag_line, int from) {
  const auto learn = [&](std::size_t at, std::uint16_t base) {
    const PlaceWord place = Domain::word(flag_line + at).load(std::memory_order_relaxed);
    if (place == kNoPlace) return true;
    if (plan_->reads) {
      bases_[base] = reinterpret_cast<std::byte*>(place);
      return true;
    }
    bases_[base] = address_of(*placement_->windows, place, from);
    if (bases_[base] != nullptr) [[likely]]
      return true;
    unknown_window_ = window_of(place);
    waiting_for_ = from;
    return false;
  };
  return learn(8, Operand::input_of(from, domain_->members())) &&
         learn(16, Operand::output_of(from, domain_->members()));
}

// A dead process cannot be read any more; its death will be reported.
Progress Cursor::copy_from_peer(const LoweredStep& step) {
  const std::span<std::byte> to(address(step.destination), elements(step) * plan_->element_bytes);
  const int process = (*placement_->processes)[static_cast<std::size_t>(step.peer)];
  const int error = read_peer(process, address(plan_->operands[step.first_source]), to);
  if (error == 0) [[likely]]
    return Progress::kDone;
  waiting_for_ = step.peer;
  if (error == ESRCH) return Progress::kPending;
  read_error_ = error;
  return Progress::kMismatch;
}

void Cursor::copy(const Operand& destination, const std::byte* source, std::size_t bytes) {
  std::byte* to = address(destination);
  if (bytes == 0 || to == source) return;
  if (!destination.is_shared()) {
    std::memcpy(to, source, bytes);
    return;
  }
  stores_.run(bytes, [&](kernels::Store store) { kernels::copy(to, source, bytes, store); });
}

// A mirror that peers read is written together with the sum, or, past the cache, after it.
void Cursor::reduce(const LoweredStep& step, std::uint64_t count) {
  std::byte* to = address(step.destination);
  if (!step.has_mirror || !step.mirror.is_shared() || step.destination.is_shared()) {
    run_kernel(to, step.has_mirror ? address(step.mirror) : nullptr, step.sources, count);
    return;
  }
  const std::size_t bytes = count * plan_->element_bytes;
  if (plan_->in_windows) {
    sum_stores_->run(bytes, [&](kernels::Store store) { write_twice(step, count, store); });
  } else {
    write_twice(step, count, stores_.kind(bytes));
  }
}

void Cursor::write_twice(const LoweredStep& step, std::uint64_t count, kernels::Store store) {
  std::byte* const to = address(step.destination);
  std::byte* const mirror = address(step.mirror);
  if (store == kernels::Store::kTemporal) return run_kernel(to, mirror, step.sources, count);
  run_kernel(to, nullptr, step.sources, count);
  kernels::copy(mirror, to, count * plan_->element_bytes, kernels::Store::kNonTemporal);
}

void Cursor::reduce_partials(const LoweredStep& step, std::uint64_t count) {
  const auto resolved = [this](const Operand& operand) { return PartialOperand{address(operand), operand.partial}; };
  for (std::uint16_t i = 0; i < step.sources; ++i)
    partial_sources_[i] = resolved(plan_->operands[step.first_source + i]);
  const std::array<PartialOperand, 2> destinations = {resolved(step.destination), resolved(step.mirror)};
  partial_sums_.reduce(plan_->partials, std::span(partial_sources_).first(step.sources),
                       std::span(destinations).first(step.has_mirror ? 2 : 1), count);
}

// Reduces sources_. Source i of a scaled reduction is rank i's input: lower() accepts nothing else.
void Cursor::run_kernel(void* destination, void* mirror, std::uint16_t sources, std::uint64_t count) {
  if (plan_->scales) [[unlikely]]
    for (std::uint16_t i = 0; i < sources; ++i) factors_[i] = domain_->factor_of(i);
  plan_->reduce(destination, mirror, sources_.data(), factors_.data(), sources, count);
}

// Packets are sent line by line, so that the first can be used while the last is still in flight.
Progress Cursor::run_packets(const LoweredStep& step, LaneState& state) {
  const std::uint64_t count = elements(step);
  const std::size_t lines = lines_of(count, *plan_);
  const std::size_t per_line = plan_->elements_per_line;
  const std::size_t line_bytes = per_line * plan_->element_bytes;
  const Operand* operands = &plan_->operands[step.first_source];
  for (; state.line < lines; ++state.line) {
    const std::size_t offset = state.line * line_bytes;
    const std::size_t left = count - std::min<std::size_t>(count, state.line * per_line);
    const std::size_t now = std::min(per_line, left);
    if (step.opcode == Opcode::kPutPackets) {
      std::byte* line = address(step.destination) + state.line * kLine;
      if (now > 0) std::memcpy(line, address(operands[0]) + offset, now * plan_->element_bytes);
      Domain::word(line + plan_->packet_data).store(word_, std::memory_order_release);
      continue;
    }
    for (std::uint16_t i = 0; i < step.sources; ++i) {
      std::byte* source = address(operands[i]);
      if (!operands[i].packets) {
        sources_[i] = source + offset;
        continue;
      }
      std::byte* line = source + state.line * kLine;
      if (!word_arrived(line + plan_->packet_data, operands[i].sender))
        return mismatch_ ? Progress::kMismatch : Progress::kPending;
      sources_[i] = line;
    }
    if (now == 0) continue;
    std::byte* destination = address(step.destination) + offset;
    std::byte* mirror = step.has_mirror ? address(step.mirror) + offset : nullptr;
    if (step.opcode == Opcode::kReducePackets) {
      run_kernel(destination, mirror, step.sources, now);
    } else {
      std::memcpy(destination, sources_[0], now * plan_->element_bytes);
      if (mirror != nullptr) std::memcpy(mirror, sources_[0], now * plan_->element_bytes);
    }
  }
  state.line = 0;
  return Progress::kDone;
}

// Writes to remote members are sent before this rank waits or ends, and incoming messages are processed.
Progress Cursor::wait_for_remotes(Progress progress) {
  if (!domain_->has_remotes()) [[likely]]
    return progress;
  domain_->flush_remotes();
  if (progress != Progress::kDone) domain_->progress_remotes();
  return progress;
}

Progress Cursor::run_remote(const LoweredStep& step, LaneState& state) {
  const int member = step.destination.member();
  transport::RemoteWriter& writer = domain_->writer(member);
  const std::size_t block = step.destination.in_slot() ? domain_->remote_slot(member) : domain_->remote_lines(member);
  const std::size_t offset = block + step.destination.offset;
  if (step.opcode == Opcode::kSignalRemote) {
    writer.write_word(word_, offset);
    return Progress::kDone;
  }
  if (step.opcode == Opcode::kPutPacketsRemote) {
    put_packets_remote(step, offset, writer);
    return Progress::kDone;
  }
  const Operand& source = plan_->operands[step.first_source];
  const std::size_t bytes =
      elements(step) * (source.partial ? plan_->partials.accumulator_bytes : plan_->element_bytes);
  state.line += writer.write_some({address(source) + state.line, bytes - state.line}, offset + state.line);
  if (state.line < bytes) {
    waiting_for_ = member;
    return Progress::kPending;
  }
  state.line = 0;
  return Progress::kDone;
}

void Cursor::put_packets_remote(const LoweredStep& step, std::size_t offset, transport::RemoteWriter& writer) {
  const std::uint64_t count = elements(step);
  const transport::PacketLines lines{
      .data_bytes = static_cast<std::uint32_t>(plan_->elements_per_line * plan_->element_bytes),
      .word_at = static_cast<std::uint32_t>(plan_->packet_data),
      .stride = kLine,
      .count = static_cast<std::uint32_t>(lines_of(count, *plan_))};
  const Operand& source = plan_->operands[step.first_source];
  writer.write_packets({address(source), count * plan_->element_bytes}, offset, lines, word_);
}

bool Cursor::barrier_passed(const LoweredStep& step, LaneState& state) {
  if (!state.at_barrier) {
    state.at_barrier = true;
    ++barrier_arrivals_[step.barrier];
  }
  if (barrier_arrivals_[step.barrier] < lanes_.size()) return false;
  state.at_barrier = false;
  return true;
}

}  // namespace accord::exec
