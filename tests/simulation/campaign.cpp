// A child writes a line of JSON for each run that failed, and one with its sums at the end. The number of the run that
// it is at is in memory that it shares with its parent.
//
// A scenario is reduced by one fault, step, rank or other detail after the other. A reduced scenario is tried with some
// seeds, since with the old seed everything happens in another order.
#include "simulation/campaign.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace accord::simulation {
namespace {

using nlohmann::json;

constexpr std::uint64_t kBatch = 500;
constexpr std::uint64_t kSeedsOfCandidate = 200;

void write_line(int pipe, const json& object) {
  const std::string line = object.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t wrote = ::write(pipe, line.data() + sent, line.size() - sent);
    if (wrote <= 0) std::_Exit(1);
    sent += static_cast<std::size_t>(wrote);
  }
}

struct Batch {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint64_t most_failures = 0;
};

[[noreturn]] void run_batch(const Batch& batch, int pipe, std::atomic<std::uint64_t>& at,
                            const std::function<Scenario(std::uint64_t)>& scenario_of_number) {
  std::uint64_t runs = 0, steps = 0, failures = 0;
  std::map<std::string, std::uint64_t> counts;
  for (std::uint64_t number = batch.first; number < batch.end && failures < batch.most_failures; ++number) {
    at = number;
    const Report report = run(scenario_of_number(number));
    ++runs;
    steps += report.steps;
    for (const auto& [what, count] : report.counts) counts[what] += count;
    if (report.violations.empty()) continue;
    ++failures;
    write_line(pipe, {{"number", number}, {"violation", report.violations.front()}});
  }
  write_line(pipe, {{"runs", runs}, {"steps", steps}, {"counts", counts}});
  std::_Exit(0);
}

std::string read_until_end(int pipe) {
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = ::read(pipe, piece, sizeof piece)) > 0;) text.append(piece, static_cast<std::size_t>(got));
  return text;
}

void add_lines(const std::string& text, Results& results) {
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const json line = json::parse(text.substr(begin, end - begin));
    if (line.contains("number")) {
      results.failures.push_back({line["number"], line["violation"]});
      continue;
    }
    results.runs += line["runs"].get<std::uint64_t>();
    results.steps += line["steps"].get<std::uint64_t>();
    for (const auto& [what, count] : line["counts"].items()) results.counts[what] += count.get<std::uint64_t>();
  }
}

/// Finds a seed with which the scenario fails.
std::optional<Scenario> failing_with_some_seed(const Scenario& scenario) {
  const auto with_seed = [&](std::uint64_t number) {
    Scenario other = scenario;
    other.seed += number;
    return other;
  };
  const Results results = run_many(0, kSeedsOfCandidate, 1, with_seed);
  if (results.failures.empty()) return std::nullopt;
  return with_seed(results.failures.front().number);
}

/// `count` smaller scenarios, each made by `reduce` from the last one that failed and a number: tries them from the
/// last number to the first.
template <typename Reduce>
void try_each(Scenario& failing, std::size_t count, const Reduce& reduce) {
  for (std::size_t i = count; i-- > 0;) {
    Scenario candidate = failing;
    if (!reduce(candidate, i)) continue;
    candidate.forgive_wake_ups();
    if (std::optional<Scenario> smaller = failing_with_some_seed(candidate)) failing = *std::move(smaller);
  }
}

}  // namespace

Results run_many(std::uint64_t first, std::uint64_t end, std::uint64_t most_failures,
                 const std::function<Scenario(std::uint64_t)>& scenario_of_number) {
  Results results;
  void* const shared =
      mmap(nullptr, sizeof(std::atomic<std::uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) std::abort();
  auto& at = *new (shared) std::atomic<std::uint64_t>;
  for (std::uint64_t next = first; next < end && results.failures.size() < most_failures;) {
    const Batch batch{
        .first = next, .end = std::min(end, next + kBatch), .most_failures = most_failures - results.failures.size()};
    int pipes[2];
    if (::pipe(pipes) != 0) std::abort();
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) run_batch(batch, pipes[1], at, scenario_of_number);
    ::close(pipes[1]);
    add_lines(read_until_end(pipes[0]), results);
    ::close(pipes[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    next = batch.end;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    results.failures.push_back({at, fmt::format("the run crashed with signal {}", WTERMSIG(status))});
    next = at + 1;
  }
  munmap(shared, sizeof at);
  return results;
}

Results run_seeds(std::uint64_t first, std::uint64_t runs, const Limits& limits, std::uint64_t most_failures) {
  return run_many(first, first + runs, most_failures, [&](std::uint64_t seed) { return scenario_of(seed, limits); });
}

Scenario minimize(const Scenario& failing) {
  Scenario smallest = failing;
  try_each(smallest, smallest.faults.size(), [](Scenario& candidate, std::size_t i) {
    candidate.faults.erase(candidate.faults.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  });
  try_each(smallest, smallest.steps.size(), [](Scenario& candidate, std::size_t i) {
    candidate.steps.erase(candidate.steps.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  });
  // From many ranks to few: the first number of ranks that fails is not tried again.
  try_each(smallest, static_cast<std::size_t>(smallest.ranks), [](Scenario& candidate, std::size_t i) {
    const int ranks = candidate.ranks - 1;
    if (static_cast<int>(i) < 1 || ranks < 2) return false;
    candidate.ranks = ranks;
    return std::ranges::all_of(candidate.faults, [&](const Fault& fault) { return fault.rank < ranks; });
  });
  try_each(smallest, smallest.steps.size(),
           [](Scenario& candidate, std::size_t i) { return std::exchange(candidate.steps[i].count, 1) != 1; });
  return smallest;
}

}  // namespace accord::simulation
