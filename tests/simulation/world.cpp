// The store answers each request after the time that a message takes there and back. A rank that dies in between has
// perhaps been served.
#include "simulation/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "topology/topology.hpp"

namespace accord::simulation {
namespace {

constexpr Time kShortestWay = 5 * kMicrosecond, kLongestWay = 200 * kMicrosecond;

class ServedStore final : public Store {
  static void travel() {
    Scheduler& scheduler = *Scheduler::current();
    scheduler.sleep_until(scheduler.now() + scheduler.random().spread(kShortestWay, kLongestWay));
  }
  template <typename Answer>
  static Answer arrive(Answer answer) {
    travel();
    return answer;
  }
  template <typename Request>
  static auto serve(Request request) {
    travel();
    auto answer = [&] {
      const SimulatorWork work;
      return request();
    }();
    return arrive(std::move(answer));
  }

 public:
  Status set(std::string_view key, std::string_view value) override {
    return serve([&] {
      Status status = memory_->set(key, value);
      Scheduler::current()->wake_all(this);
      return status;
    });
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    return serve([&] {
      Result<std::int64_t> sum = memory_->add(key, delta);
      Scheduler::current()->wake_all(this);
      return sum;
    });
  }
  Status erase(std::string_view key) override {
    return serve([&] { return memory_->erase(key); });
  }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    Scheduler& scheduler = *Scheduler::current();
    const Time now = scheduler.now();
    const Time deadline = timeout.count() > kNever - now ? kNever : now + timeout.count();
    travel();
    while (true) {
      Result<std::string> value = look(key);
      if (value.ok() || value.status().code() != StatusCode::kTimeout || scheduler.now() >= deadline)
        return arrive(std::move(value));
      scheduler.block("a key of the store", this, deadline);
    }
  }
  std::string describe() const override { return "the simulated store"; }

 private:
  Result<std::string> look(std::string_view key) const {
    const SimulatorWork work;
    return memory_->get(key, Duration::zero());
  }

  const std::shared_ptr<Store> memory_ = make_memory_store();
};

}  // namespace

World::World(std::uint64_t seed, const Pace& pace)
    : scheduler_(seed, pace), descriptors_(scheduler_), store_(std::make_shared<ServedStore>()) {}

}  // namespace accord::simulation

namespace accord::topology {

Result<std::string> this_host() { return fmt::format("host-{}", simulation::Scheduler::fiber()->process->host); }

// A core for each host: ranks that wait yield at once.
Result<Place> this_place() {
  ACCORD_ASSIGN_OR_RETURN(const std::string host, this_host());
  return Place{.host = host,
               .process = simulation::Scheduler::fiber()->process->pid,
               .cpus = {0},
               .numa_nodes = {0},
               .cores = 1,
               .core_ids = {0},
               .process_space = "simulated"};
}

}  // namespace accord::topology
