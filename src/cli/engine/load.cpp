#include "cli/engine/load.hpp"

#include <fmt/format.h>

#include <charconv>

#include "base/config.hpp"
#include "base/text.hpp"
#include "cli/number_checks.hpp"
#include "engine/package/program.hpp"
#include "engine/program/activation_dtype.hpp"
#include "engine/runtime/agreement.hpp"
#include "engine/runtime/device_name.hpp"

namespace accord::cli {

namespace {

// Groups of a program, in which each rank has a part of its own; none for other packages.
std::vector<std::string> program_groups(const std::string& package) {
  const auto folder = engine::PackageFolder::open(package);
  if (!folder.ok()) return {};
  const auto program = engine::find_program(*folder);
  if (!program.ok() || !*program) return {};
  std::vector<std::string> names;
  for (const auto& [name, members] : (*program)->ranks.front().groups) names.push_back(name);
  return names;
}

// Number of a rank among the ranks of its host, as launchers set it (LOCAL_RANK).
std::int16_t place_on_host(Rank rank) {
  const auto environment = process_environment();
  const auto found = environment.find("LOCAL_RANK");
  int place = rank;
  if (found != environment.end())
    (void)std::from_chars(found->second.data(), found->second.data() + found->second.size(), place);
  return static_cast<std::int16_t>(place);
}

}  // namespace

void add_dtype_options(CLI::App& command, std::string& all_reduce_dtype, std::string& activation_dtype) {
  command.add_option("--all-reduce-dtype", all_reduce_dtype,
                     "int8: send sums over the ranks of 32 KB and more as 8-bit codes [exact]");
  command.add_option(
      "--activation-dtype", activation_dtype,
      "Round rows that are multiplied by quantized weights: on the CPU to int8, with weights of 8 or 4 bits; "
      "on GPUs to fp8, with fp8 weights [not rounded]");
}

void add_load_options(CLI::App& command, LoadChoice& load) {
  command.add_option("--group", load.group, "Logical group of the package that the ranks form [the only one]");
  command.add_option("--pp", load.pp, "Pipeline stages that the ranks are divided into [1]")
      ->check(CLI::Range(1, 1024));
  command.add_option("--dp", load.dp, "Replicas, which share a batch, that the ranks are divided into [1]")
      ->check(CLI::Range(1, 1024));
  command.add_option("--cp", load.cp, "Ranks that divide the tokens of each sequence of a language model [1]")
      ->check(CLI::Range(1, 1024));
  command.add_option(
      "--device", load.device,
      "Where the model runs: cpu, cuda:0, or cuda for a GPU per rank, by the rank's number on its host [cpu]");
  command.add_option("--threads", load.threads, "Threads of each rank [ACCORD_THREADS]")->check(positive_number());
  command
      .add_option("--canonical-ranks", load.canonical_ranks,
                  "A power of two: outputs have the same bits on any number of ranks that divides it")
      ->check(positive_number());
  command
      .add_option("--overlap-rows", load.overlap_rows,
                  "Compute runs of at least this many rows in two halves, each during the other's sums over the ranks")
      ->check(positive_number());
  add_dtype_options(command, load.all_reduce_dtype, load.activation_dtype);
  command.add_option("--memory-limit", load.memory_limit,
                     "Limit of a rank's weights, arenas and caches together, such as 2GiB");
}

Result<LoadOptions> load_options(const LoadChoice& load) {
  const Result<Device> device = engine::device_of_name(load.device);
  if (!device.ok()) return device.status().with_context("--device");
  LoadOptions options{.device = *device,
                      .outputs = DeviceType::kCpu,
                      .threads = load.threads,
                      .canonical_ranks = load.canonical_ranks,
                      .overlap_rows = load.overlap_rows};
  for (const auto& [flag, given, option, dtype_of] :
       {std::tuple{"--all-reduce-dtype", &load.all_reduce_dtype, &options.all_reduce_dtype, &dtype_from_string},
        std::tuple{"--activation-dtype", &load.activation_dtype, &options.activation_dtype,
                   &engine::activation_dtype_of_name}}) {
    if (given->empty()) continue;
    const Result<DType> dtype = dtype_of(*given);
    if (!dtype.ok()) return dtype.status().with_context(flag);
    *option = *dtype;
  }
  if (load.memory_limit.empty()) return options;
  const Result<std::size_t> limit = parse_bytes(load.memory_limit);
  if (!limit.ok()) return limit.status().with_context("--memory-limit");
  options.memory_limit = *limit;
  return options;
}

Result<GroupChoice> choose_groups(const std::string& package, const LoadChoice& load, int ranks) {
  GroupChoice choice;
  const int divided = load.pp * load.dp * load.cp;
  if (ranks % divided != 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} rank{} cannot form {} stages of {} replicas of {} parts of each sequence", ranks,
                              ranks == 1 ? "" : "s", load.pp, load.dp, load.cp));
  }
  const int rest = ranks / divided;
  const auto add = [&](const std::string& name, int size) { choice.groups.emplace_back(name, size); };
  if (!load.group.empty()) {
    add(load.group, rest);
  } else if (rest > 1) {
    const Result<engine::Package> opened = engine::Package::open(package);
    if (!opened.ok()) {
      const std::vector<std::string> of_program = program_groups(package);
      add(of_program.size() == 1 ? of_program.front() : "tp", rest);
    } else {
      const std::vector<std::string>& groups = opened->manifest().groups;
      choice.identity = opened->manifest().sha256;
      choice.bytes_read = opened->metadata_bytes_read();
      if (groups.size() > 1) {
        return Status(
            StatusCode::kInvalidArgument,
            fmt::format("{} has {} groups; choose with --group which one the ranks form", package, groups.size()));
      }
      if (groups.empty()) {
        choice.alone = rest;
      } else {
        add(groups.front(), rest);
      }
    }
  }
  if (choice.alone > 1 && divided > 1) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} has no group that {} ranks beside --pp {}, --dp {} and --cp {} could form", package,
                              rest, load.pp, load.dp, load.cp));
  }
  if (load.pp > 1) add(kStageGroup, load.pp);
  if (load.dp > 1) add(kBatchGroup, load.dp);
  if (load.cp > 1) add(kContextGroup, load.cp);
  return choice;
}

std::map<std::string, GroupPlace> places_of(const GroupChoice& choice, Rank rank) {
  std::map<std::string, GroupPlace> places;
  for (const auto& [name, size] : choice.groups) {
    places[name] = {rank % size, size};
    rank /= size;
  }
  return places;
}

Result<std::map<std::string, Communicator>> communicators_of(const GroupChoice& choice, const Communicator& all) {
  std::map<std::string, Communicator> communicators;
  if (choice.groups.size() == 1) {
    communicators.emplace(choice.groups.front().first, all);
    return communicators;
  }
  Communicator parent = all;
  int stride = 1;
  for (const auto& [name, size] : choice.groups) {
    const int place = all.rank() / stride % size;
    ACCORD_ASSIGN_OR_RETURN(std::optional<Communicator> group, parent.split(all.rank() - place * stride, place, name));
    communicators.emplace(name, *std::move(group));
    stride *= size;
  }
  return communicators;
}

Result<Engine> load_on_ranks(const std::string& package, const Communicator& all, const GroupChoice& choice,
                             const LoadChoice& load) {
  ACCORD_ASSIGN_OR_RETURN(LoadOptions options, load_options(load));
  if (load.device == "cuda") options.device.index = place_on_host(all.rank());
  ACCORD_ASSIGN_OR_RETURN(const auto groups, communicators_of(choice, all));
  Result<Engine> engine = Engine::load_and_bind(package, groups, options);
  if (choice.alone > 1) {
    ACCORD_RETURN_IF_ERROR(engine::agree({{"all ranks", all}}, {engine.status(), choice.identity}));
  }
  return engine;
}

}  // namespace accord::cli
