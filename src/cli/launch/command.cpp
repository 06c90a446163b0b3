// `accord run`: turns torchrun's options, spelled with hyphens or underscores, into a Job. Options end at the
// program; everything after it belongs to the program. Options of torchrun that have no meaning here are rejected as
// unknown, never ignored.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/launch/job.hpp"
#include "cli/number_checks.hpp"
#include "cli/python_program.hpp"
#include "topology/topology.hpp"

namespace accord::cli {
namespace {

constexpr int kDefaultEndpointPort = 29400;  // as in torchrun
constexpr int kElasticRestarts = 10;

// The options as written.
struct LaunchOptions {
  std::string ranks_here;  ///< empty: 1, or with --elastic as many as can take part
  std::string nodes = "1";
  int node = -1;
  std::string endpoint;
  std::string backend;
  std::string master_host;
  int master_port = 0;
  std::string elastic;
  int max_restarts = -1;  ///< -1: not given
  bool standalone = false;
  bool is_module = false;
  bool no_python = false;
  std::string binding = "none";
  double grace_seconds = 5;
  double meeting_seconds = 600;
  int parent = 0;  ///< 0: the job outlives the process that started it
  Job job;
};

Status wrong(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

Result<int> positive(std::string_view text, std::string_view option) {
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, parse_integer(text, option));
  if (number < 1 || number > 65536)
    return wrong(fmt::format("{} is {}; it must be a number from 1 to 65536", option, text));
  return static_cast<int>(number);
}

Result<int> ranks_of(const std::string& text) {
  if (text == "gpu")
    return wrong("--nproc-per-node gpu: this build has no CUDA (accord info); give a number, auto or cpu");
  if (text != "auto" && text != "cpu") {
    Result<int> number = positive(text, "--nproc-per-node");
    if (number.ok()) return number;
    return wrong(fmt::format("--nproc-per-node is \"{}\"; it must be a number from 1 to 65536, auto or cpu", text));
  }
  ACCORD_ASSIGN_OR_RETURN(const topology::Place place, topology::this_place());
  return place.cores;
}

// "2", or torchrun's "2:2". A real range would require elasticity.
Result<int> nodes_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  ACCORD_ASSIGN_OR_RETURN(const int least, positive(text.substr(0, colon), "--nnodes"));
  if (colon == std::string::npos) return least;
  ACCORD_ASSIGN_OR_RETURN(const int most, positive(text.substr(colon + 1), "--nnodes"));
  if (least == most) return least;
  return wrong(fmt::format("--nnodes {}: the number of nodes cannot change while a job runs; give one number", text));
}

// Sets the numbers of ranks and of restarts.
Status read_ranks(const LaunchOptions& options, Job& job) {
  job.max_restarts = std::max(options.max_restarts, 0);
  std::string ranks_here = options.ranks_here.empty() ? "1" : options.ranks_here;
  if (!options.elastic.empty()) {
    const Result<RankRange> range = parse_rank_range(options.elastic);
    if (!range.ok()) return wrong(fmt::format("--elastic: {}", range.status().message()));
    job.elastic = *range;
    if (options.max_restarts < 0) job.max_restarts = kElasticRestarts;
    const int share = (job.elastic->most + job.nodes - 1) / job.nodes;
    if (options.ranks_here.empty()) ranks_here = std::to_string(share);
  }
  ACCORD_ASSIGN_OR_RETURN(job.ranks_here, ranks_of(ranks_here));
  if (job.elastic && job.nodes == 1 && job.ranks_here < job.elastic->least)
    return wrong(
        fmt::format("--elastic {}: MIN is larger than the number of ranks, {}", options.elastic, job.ranks_here));
  return {};
}

Status read_endpoint(const LaunchOptions& options, Job& job) {
  std::string host = options.endpoint;
  job.endpoint_port = kDefaultEndpointPort;
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && host.find(']', colon) == std::string::npos) {
    ACCORD_ASSIGN_OR_RETURN(job.endpoint_port, positive(host.substr(colon + 1), "the port of --rdzv-endpoint"));
    host.resize(colon);
  }
  if (host.empty()) {  // as in torchrun's static rendezvous, use the master's address
    host = options.master_host;
    if (options.master_port != 0) job.endpoint_port = options.master_port;
    job.master_port = 0;
  }
  if (host.empty()) {
    return wrong(fmt::format("--nnodes {} requires --rdzv-endpoint HOST:PORT (or --master-addr), an address of node 0",
                             job.nodes));
  }
  job.endpoint_host = host;
  if (job.master_host.empty()) job.master_host = host;
  if (job.master_host.starts_with('[')) job.master_host = job.master_host.substr(1, job.master_host.size() - 2);
  return Status();
}

std::vector<std::string> command_of(const LaunchOptions& options, const std::vector<std::string>& program) {
  const bool is_script = program[0].ends_with(".py") && !options.no_python;
  if (!is_script && !options.is_module) return program;
  std::vector<std::string> command = {python_program(), "-u"};
  if (options.is_module) command.emplace_back("-m");
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

Result<Job> job_of(const LaunchOptions& options, const std::vector<std::string>& program) {
  Job job = options.job;
  if (program.empty()) return wrong("no program to run: accord run [options] PROGRAM [arguments]");
  if (options.is_module && options.no_python) return wrong("--module and --no-python exclude each other");
  job.program = command_of(options, program);
  ACCORD_ASSIGN_OR_RETURN(job.nodes, nodes_of(options.nodes));
  ACCORD_RETURN_IF_ERROR(read_ranks(options, job));
  if (options.node >= job.nodes) {
    return wrong(fmt::format("--node-rank {} must be less than --nnodes {}", options.node, job.nodes));
  }
  if (options.node >= 0) job.node = options.node;
  job.master_host = options.master_host;
  job.master_port = options.master_port;
  if (job.nodes == 1) {
    job.node = 0;
    if (job.master_host.empty()) job.master_host = "127.0.0.1";
  } else if (options.standalone) {
    return wrong(fmt::format("--standalone is for one node, but --nnodes is {}", job.nodes));
  } else {
    ACCORD_RETURN_IF_ERROR(read_endpoint(options, job));
  }
  job.binding = options.binding == "core"   ? Binding::kCore
                : options.binding == "numa" ? Binding::kNuma
                                            : Binding::kNone;
  const auto seconds = [](double number) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(number));
  };
  job.grace = seconds(options.grace_seconds);
  job.meeting_timeout = seconds(options.meeting_seconds);
  return job;
}

// Returns what follows the options: the program and its arguments. A "--" before the program ends the options.
Result<std::vector<std::string>> program_of(const CLI::App& run, const std::vector<std::string>& after_dashes) {
  std::vector<std::string> program = run.remaining();
  if (!program.empty() && program.front().starts_with("-")) {
    std::vector<std::string> names;
    for (const CLI::Option* option : run.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        if (name.find('_') == std::string::npos) names.push_back("--" + name);
      }
    }
    const std::vector<std::string_view> views(names.begin(), names.end());
    return unknown_name("option", program.front().substr(0, program.front().find('=')), views);
  }
  const std::size_t skipped = program.empty() && !after_dashes.empty() ? 1 : 0;
  program.insert(program.end(), after_dashes.begin() + static_cast<std::ptrdiff_t>(skipped), after_dashes.end());
  return program;
}

// From now on the kernel kills this process when its parent dies; its guards then kill the ranks. Returns false if the
// parent has died already.
bool end_with(pid_t parent) { return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent; }

int run_job(const CLI::App& run, const LaunchOptions& options, const std::vector<std::string>& after_dashes) {
  const Result<std::vector<std::string>> program = program_of(run, after_dashes);
  const Result<Job> job = program.ok() ? job_of(options, *program) : Result<Job>(program.status());
  if (!job.ok()) {
    fmt::print(stderr, "accord run: {}\nsee \"accord run --help\"\n", job.status().message());
    return kUsageError;
  }
  if (options.parent != 0 && !end_with(options.parent)) {
    fmt::print(stderr, "accord run: process {} of --end-with is not the parent of this one\n", options.parent);
    return kFailure;
  }
  return launch(*job);
}

// Adds the spelling "--nproc_per_node" to "--nproc-per-node".
std::string spellings(const std::string& names) {
  std::string all = names;
  for (const std::string_view name : split_text(names, ',')) {
    std::string underscored(name);
    for (std::size_t i = 2; i < underscored.size(); ++i) {
      if (underscored[i] == '-') underscored[i] = '_';
    }
    if (underscored != name) all += "," + underscored;
  }
  return all;
}

void add_options(CLI::App& run, LaunchOptions& options) {
  const auto add = [&](const char* names, auto& variable, const char* meaning) {
    return run.add_option(spellings(names), variable, meaning);
  };
  add("-n,--nproc-per-node", options.ranks_here, "Ranks on this node: a number, or auto or cpu for one per core [1]");
  add("--nnodes", options.nodes, "Nodes, each with a launcher of its own [1]");
  add("--node-rank", options.node, "This node, from 0; if absent, node 0 is the first on the endpoint's machine")
      ->check(non_negative_number());
  add("--rdzv-endpoint", options.endpoint, "HOST[:PORT] of node 0, where launchers meet [port 29400]");
  add("--rdzv-backend", options.backend, "For compatibility with torchrun: static and c10d mean the same here")
      ->check(CLI::IsMember({"static", "c10d"}));
  add("--rdzv-id", options.job.run_id, "Name of the job; launchers of other jobs are refused");
  add("--rdzv-timeout", options.meeting_seconds, "Seconds for all launchers to arrive [600]")->check(positive_number());
  add("--master-addr", options.master_host, "MASTER_ADDR of the ranks [the endpoint's host, or 127.0.0.1]");
  add("--master-port", options.master_port, "MASTER_PORT of the ranks [a free one for each start]")
      ->check(CLI::Range(1, 65535));
  run.add_flag("--standalone", options.standalone, "One node, without a rendezvous (the default)");
  add("--elastic", options.elastic,
      "MIN:MAX, numbers of ranks: start a rank that failed again, while the others go on (accord.ElasticGroup)")
      ->check(CLI::Validator([](const std::string& text) { return text.empty() ? "it is empty" : std::string(); },
                             "MIN:MAX"));
  add("--max-restarts", options.max_restarts,
      "Starts of the whole job after a failure [0]; with --elastic, of single ranks of this node [10]")
      ->check(non_negative_number());
  add("--log-dir", options.job.log_directory, "Also write each rank's lines to LOG_DIR/restart_N/rank_R.log");
  add("--role", options.job.role, "ROLE_NAME of the ranks");
  add("--bind", options.binding,
      "Processors of a rank: core (its share of the cores), numa (one memory node), none [none]")
      ->check(CLI::IsMember({"core", "numa", "none"}));
  add("--grace", options.grace_seconds, "Seconds between asking a rank to end and killing it [5]")
      ->check(non_negative_number());
  add("--end-with", options.parent, "Process id of the parent: its death kills the job, even if it was killed itself")
      ->check(positive_number());
  run.add_flag(
         "--route{on}", options.job.route,
         "Every process group of torch.distributed uses accord, whatever backend the program requests (--route=off: "
         "only those that request it; --route=report: also print a report at the end)")
      ->check(CLI::IsMember({"on", "off", "report"}));
  run.add_flag("-m,--module", options.is_module, "PROGRAM is a Python module");
  run.add_flag(spellings("--no-python"), options.no_python, "Execute PROGRAM itself, even if it ends in .py");
}

}  // namespace

void add_run(CLI::App& app, Action& chosen, const std::vector<std::string>& after_dashes) {
  CLI::App* run = app.add_subcommand("run", "Start a program on every rank: accord run [options] PROGRAM [arguments]");
  run->footer(
      "A PROGRAM that ends in .py is run by python3, others are executed. Each rank gets torchrun's variables (RANK, "
      "WORLD_SIZE,\n"
      "LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, ...). Its lines are shown behind \"[rank] \". When a "
      "rank fails the\n"
      "others are ended; the exit code is that of the first failure. SIGINT, SIGTERM, SIGHUP, SIGQUIT are passed on "
      "and end the job.\n");
  run->prefix_command();
  const auto options = std::make_shared<LaunchOptions>();
  add_options(*run, *options);
  run->callback([run, options, &chosen, &after_dashes] {
    chosen = [run, options, &after_dashes] { return run_job(*run, *options, after_dashes); };
  });
}

}  // namespace accord::cli
