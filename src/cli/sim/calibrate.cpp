// `accord sim calibrate`: measures what the keys of a machine's file mean, and writes the file. The ranks of one host
// are forks of the command; those of two hosts are a launcher's. All ranks run this; rank 0 prints and writes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/command_ranks.hpp"
#include "cli/interrupt.hpp"
#include "cli/number_checks.hpp"
#include "cli/plan/commands.hpp"
#include "cli/progress_line.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/memory_probes.hpp"
#include "cli/sim/plan_probes.hpp"
#include "comm/internal.hpp"
#include "sim/calibration.hpp"
#include "sim/machine_text.hpp"
#include "topology/processor.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShortMessage = 8, kLongMessage = 4 << 20;

struct CalibrateOptions {
  std::string output = "machine.toml";
  std::string network;  // the file with the host
  int ranks = 0;        // 0: as many as there are cores; with --network, those of the file
  double seconds = 0.2;
  std::string statistic = "median";
  bool as_json = false;
};

// Everything that measures, on one rank.
struct Session {
  const CommandRanks& ranks;
  const InterruptWatch& watch;
  const ProgressLine& progress;
  Communicator control;
  double seconds;
  sim::Statistic statistic;

  Effort effort() const { return {.seconds = seconds, .calls = {}, .rounds = 7}; }

  // Returns true if a rank was interrupted.
  Result<bool> interrupted() {
    std::int32_t any = watch.interrupted() ? 1 : 0;
    ACCORD_RETURN_IF_ERROR(control.all_reduce(Buffer{&any, 1, DType::kInt32}, ReduceOp::kMax));
    return any != 0;
  }
};

// A value, or nullopt if a rank was interrupted.
template <typename Value>
Status take(Result<std::optional<Value>> from, Value& to, bool& interrupted) {
  if (!from.ok()) return from.status();
  interrupted = !from->has_value();
  if (!interrupted) to = **std::move(from);
  return {};
}

// Ranks 0 and 1 measure at once, each alone, since they may share a core of the processor. The figures of rank 0 count.
Status measure_plans(Session& session, sim::HostTimings& timings, bool& interrupted) {
  if (session.ranks.rank() < 2) {
    session.progress.show("measuring calls and steps");
    const std::array<Rank, 1> alone_ranks = {session.ranks.rank()};
    ACCORD_ASSIGN_OR_RETURN(const std::optional<Communicator> alone,
                            session.control.split_ranks(alone_ranks, "calibrate alone"));
    Meter meter(*alone, session.watch);
    PlanProbes probes(*alone, meter, session.effort(), session.statistic);
    ACCORD_RETURN_IF_ERROR(take(probes.call(), timings.call, interrupted));
    if (!interrupted) ACCORD_RETURN_IF_ERROR(take(probes.steps(), timings.steps, interrupted));
  }
  ACCORD_ASSIGN_OR_RETURN(const bool any, session.interrupted());
  interrupted = interrupted || any;
  return {};
}

Status measure_memory(Session& session, SharedMemory& shared, sim::HostTimings& timings, bool& interrupted) {
  MemoryProbes probes(shared, session.control, session.seconds, session.statistic);
  session.progress.show("measuring copies");
  ACCORD_ASSIGN_OR_RETURN(const MemoryProbes::Copies copies, probes.copies());
  timings.copies = copies.within;
  timings.memory_rates = copies.memory_rates;
  ACCORD_ASSIGN_OR_RETURN(interrupted, session.interrupted());
  if (interrupted) return {};
  session.progress.show("measuring signals");
  ACCORD_ASSIGN_OR_RETURN(timings.hop, probes.hop());
  session.progress.show("measuring memory that two ranks share");
  ACCORD_ASSIGN_OR_RETURN(const MemoryProbes::Exchanges exchanges, probes.exchanges());
  timings.writes = exchanges.writes;
  timings.reads = exchanges.reads;
  timings.packet_writes = exchanges.packet_writes;
  timings.packet_reads = exchanges.packet_reads;
  ACCORD_ASSIGN_OR_RETURN(interrupted, session.interrupted());
  if (interrupted) return {};
  session.progress.show("measuring sums of packets");
  ACCORD_ASSIGN_OR_RETURN(timings.packet_sum, probes.packet_sum());
  session.progress.show("measuring copies by the kernel");
  ACCORD_ASSIGN_OR_RETURN(timings.kernel_reads, probes.kernel_reads());
  session.progress.show("measuring switches between ranks of a core");
  ACCORD_ASSIGN_OR_RETURN(timings.core_switch, probes.core_switch());
  ACCORD_ASSIGN_OR_RETURN(interrupted, session.interrupted());
  return {};
}

// Returns the machine on rank 0, and nullopt if a rank was interrupted.
Result<std::optional<sim::Calibrated>> measure_host(Session& session, SharedMemory& shared, int ranks, int cores) {
  sim::HostTimings timings{.ranks = ranks, .cores = cores};
  bool interrupted = false;
  ACCORD_RETURN_IF_ERROR(measure_plans(session, timings, interrupted));
  if (!interrupted) ACCORD_RETURN_IF_ERROR(measure_memory(session, shared, timings, interrupted));
  if (interrupted) return std::optional<sim::Calibrated>();
  return std::optional(session.ranks.rank() == 0 ? sim::host_from(timings) : sim::Calibrated());
}

// True if all ranks run on one machine, in network namespaces or containers of it.
Result<bool> is_one_machine(Communicator& control) {
  constexpr std::size_t kBytes = 36;  // of a boot id
  ACCORD_ASSIGN_OR_RETURN(std::string mine, read_file("/proc/sys/kernel/random/boot_id"));
  mine.resize(kBytes);
  std::string all(kBytes * static_cast<std::size_t>(control.size()), '\0');
  ACCORD_RETURN_IF_ERROR(control.all_gather(ConstBuffer(mine.data(), kBytes, DType::kUInt8),
                                            Buffer{all.data(), all.size(), DType::kUInt8}));
  for (std::size_t at = 0; at < all.size(); at += kBytes)
    if (all.compare(at, kBytes, mine) != 0) return false;
  return true;
}

Result<std::optional<sim::Calibrated>> measure_network(Session& session, sim::Calibrated calibrated) {
  if (session.ranks.size() != 2 || comm::host_count(session.control) != 2)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--network needs two ranks on two hosts, and there are {} on {}", session.ranks.size(),
                              comm::host_count(session.control)));
  sim::NetworkTimings timings;
  ACCORD_ASSIGN_OR_RETURN(timings.share_cores, is_one_machine(session.control));
  ACCORD_ASSIGN_OR_RETURN(const Communicator pair, session.ranks.communicator("calibrate pair"));
  Meter meter(session.control, session.watch);
  PlanProbes probes(pair, meter, session.effort(), session.statistic);
  bool interrupted = false;
  session.progress.show("measuring signals between hosts");
  ACCORD_RETURN_IF_ERROR(take(probes.round_trips(), timings.round_trips, interrupted));
  session.progress.show("measuring messages between hosts");
  if (!interrupted) ACCORD_RETURN_IF_ERROR(take(probes.message(kShortMessage), timings.message, interrupted));
  if (!interrupted) ACCORD_RETURN_IF_ERROR(take(probes.message(kLongMessage), timings.stream, interrupted));
  if (interrupted) return std::optional<sim::Calibrated>();
  timings.stream.value = kLongMessage / timings.stream.value;
  sim::add_network(timings, calibrated);
  return std::optional(std::move(calibrated));
}

Json to_json(const CalibrateOptions& options, const sim::Calibrated& calibrated, const std::string& head) {
  const auto curve = [](const sim::RateCurve& rates) {
    Json pairs = Json::array();
    for (const sim::RateCurve::Point& one : rates.points()) pairs.push_back({one.bytes, one.bytes_per_second});
    return pairs;
  };
  const sim::HostModel& host = calibrated.machine.host;
  Json notes = Json::object();
  for (const auto& [key, note] : calibrated.notes) notes[key] = note;
  Json answer = {{"file", options.output},
                 {"measured", head},
                 {"host",
                  {{"ranks", host.ranks},
                   {"cores", host.cores},
                   {"call_seconds", host.call_seconds},
                   {"step_seconds", host.times.seconds_per_step},
                   {"hop_seconds", host.times.seconds_per_hop},
                   {"core_switch_seconds", host.core_switch_seconds},
                   {"bytes_per_second", curve(host.times.touched)},
                   {"exchanged_bytes_per_second", curve(host.times.exchanged)},
                   {"published_bytes_per_second", curve(host.times.published)},
                   {"packet_bytes_per_second", curve(host.times.packets)},
                   {"packet_sum_bytes_per_second", curve(host.times.packet_sums)},
                   {"read_bytes_per_second", curve(host.times.read)},
                   {"memory_bytes_per_second", host.memory_bytes_per_second},
                   {"cache_bytes", host.cache_bytes}}}};
  if (calibrated.machine.has_network) {
    const sim::NetworkModel& network = calibrated.machine.network;
    answer["network"] = {{"shape", sim::to_string(network.shape)},
                         {"nic_bytes_per_second", network.nic_bytes_per_second},
                         {"message_seconds", network.message_seconds},
                         {"latency_seconds", network.latency_seconds},
                         {"hosts_share_cores", network.hosts_share_cores}};
  }
  answer["notes"] = std::move(notes);
  return answer;
}

Status write_result(const CalibrateOptions& options, const sim::Calibrated& calibrated, const std::string& head) {
  const std::string text = fmt::format("# {}\n\n{}", head, sim::to_toml(calibrated.machine, calibrated.notes));
  ACCORD_RETURN_IF_ERROR(sim::machine_from_toml(text).status().with_context("the resulting file"));
  ACCORD_RETURN_IF_ERROR(write_file(options.output, text));
  if (options.as_json) {
    fmt::print("{}\n", to_json(options, calibrated, head).dump(2));
    return {};
  }
  const sim::HostModel& host = calibrated.machine.host;
  const auto rate = [](double bytes_per_second) { return fmt::format("{:.3g} GB/s", bytes_per_second / 1e9); };
  fmt::print("call {}, step {}, hop {}, switch of a core {}\n", time_text(host.call_seconds),
             time_text(host.times.seconds_per_step), time_text(host.times.seconds_per_hop),
             time_text(host.core_switch_seconds));
  fmt::print("memory of all ranks {}\n", rate(host.memory_bytes_per_second));
  if (calibrated.machine.has_network)
    fmt::print("network: message {}, latency {}, {}\n", time_text(calibrated.machine.network.message_seconds),
               time_text(calibrated.machine.network.latency_seconds),
               rate(calibrated.machine.network.nic_bytes_per_second));
  fmt::print("written to {0}; accord sim run --machine {0} uses it\n", options.output);
  return {};
}

Status check_launcher(const CalibrateOptions& options) {
  ACCORD_RETURN_IF_ERROR(config().status());
  ACCORD_ASSIGN_OR_RETURN(const comm::JobPlace place, comm::job_place(process_environment()));
  if (options.network.empty() && place.launcher != "none")
    return {StatusCode::kInvalidArgument,
            fmt::format("calibrating a host starts its own ranks, but a launcher ({}) has started {}", place.launcher,
                        place.size)};
  if (!options.network.empty() && place.launcher == "none")
    return {StatusCode::kInvalidArgument, "--network needs two ranks of a launcher, on two hosts"};
  return place.rank == 0 ? check_writable(options.output) : Status();
}

// Returns the exit code.
Result<int> calibrate(const CalibrateOptions& options) {
  ACCORD_RETURN_IF_ERROR(check_launcher(options));
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  sim::Calibrated calibrated;
  const bool has_network = !options.network.empty();
  if (has_network) {
    ACCORD_ASSIGN_OR_RETURN(calibrated.machine, sim::read_machine(options.network));
  }
  const int ranks = options.ranks > 0 ? options.ranks
                    : has_network     ? calibrated.machine.host.ranks
                                      : std::max(2, place.cores);
  calibrated.machine.host.ranks = ranks;
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<SharedMemory> shared,
                          SharedMemory::create(MemoryProbes::shared_bytes()));
  const InterruptWatch watch;
  const int started = std::max(2, std::min(ranks, place.cores));
  ACCORD_ASSIGN_OR_RETURN(const CommandRanks command_ranks,
                          CommandRanks::create(has_network ? std::nullopt : std::optional(started), started));
  ACCORD_ASSIGN_OR_RETURN(const Communicator control, command_ranks.communicator("calibrate control"));
  const ProgressLine progress(command_ranks.rank() == 0);
  Session session{command_ranks,   watch,
                  progress,        control,
                  options.seconds, options.statistic == "minimum" ? sim::Statistic::kMinimum : sim::Statistic::kMedian};
  const auto report_interrupted = [&] {
    progress.clear();
    if (command_ranks.rank() == 0) fmt::print(stderr, "accord sim calibrate: interrupted; nothing was written\n");
  };
  Result<std::optional<sim::Calibrated>> done = std::optional<sim::Calibrated>();
  {
    const InterruptDeadline deadline(command_ranks.rank(), report_interrupted);
    done = has_network ? measure_network(session, std::move(calibrated))
                       : measure_host(session, *shared, ranks, place.cores);
  }
  progress.clear();
  if (watch.interrupted() && !done.ok()) done = std::optional<sim::Calibrated>();  // another rank may have ended first
  ACCORD_RETURN_IF_ERROR(done.status());
  if (!done->has_value()) report_interrupted();
  if (command_ranks.rank() != 0) return kSuccess;
  if (!done->has_value()) return kInterrupted;
  const std::string head = fmt::format("measured by accord sim calibrate on {}, {} cores; {} of the samples",
                                       topology::processor_name(), place.cores, options.statistic);
  ACCORD_RETURN_IF_ERROR(write_result(options, **done, head));
  return kSuccess;
}

int run(const CalibrateOptions& options) {
  const Result<int> code = calibrate(options);
  return code.ok() ? *code : report_failure("sim calibrate", code.status());
}

}  // namespace

void add_sim_calibrate(CLI::App& sim, Action& chosen) {
  CLI::App* command = sim.add_subcommand("calibrate", "Measure this host, or the network between two, for accord sim");
  const auto options = std::make_shared<CalibrateOptions>();
  command->add_option("-o,--output", options->output, "The machine's file")->type_name("FILE")->capture_default_str();
  command
      ->add_option("-n,--ranks", options->ranks,
                   "Ranks of each host in the file [one for each core, at least 2; with --network, those of its FILE]")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--network", options->network,
                   "Add the network between two hosts to the machine in FILE; needs a launcher with a rank on each")
      ->type_name("FILE");
  command->add_option("--seconds", options->seconds, "Time for each primitive at each size")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--statistic", options->statistic,
                   "Which of the samples counts: median, or minimum if other programs run beside it")
      ->check(CLI::IsMember({"median", "minimum"}))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "Print the figures as JSON");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
