// Launchers differ in names only. What they do not give is a place to meet: with MASTER_ADDR it is a TCP store that rank 0
// hosts; jobs of mpirun within one host meet at a port made of the job's name. MASTER_PORT itself belongs to PyTorch, whose
// store rank 0 or torchrun serves there, so accord's begins at the port after it. Other programs may listen there too, so the
// store carries the job's name and a client goes on looking until it finds it.
#include "comm/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/bootstrap.hpp"
#include "store/tcp_socket.hpp"

namespace accord::comm {
namespace {

using Environment = std::map<std::string, std::string>;

constexpr std::string_view kJobKey = "accord/job";
constexpr int kDefaultPort = 29500;
constexpr int kFirstJobPort = 20000;  // below the ephemeral ports that connections of others take
constexpr int kJobPorts = 12000;

std::optional<std::string> find(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::nullopt : std::optional(found->second);
}

struct Launcher {
  std::string_view name;
  std::string rank, size;
  std::string local_size;        ///< equal to size when the job has one host
  std::vector<std::string> job;  ///< variables that name the job together; without the first it has no name
};

const Launcher kLaunchers[] = {
    {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", {"TORCHELASTIC_RUN_ID"}},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", {"PMIX_NAMESPACE"}},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", {"PMI_JOBID"}},
};

Result<int> number(const Environment& environment, const std::string& name, std::int64_t low, std::int64_t high) {
  const std::optional<std::string> text = find(environment, name);
  if (!text) return Status(StatusCode::kInvalidArgument, fmt::format("the environment variable {} is missing", name));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t value, parse_integer(*text, name));
  if (value < low || value > high)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}={} is out of range; expected {} to {}", name, value, low, high));
  return static_cast<int>(value);
}

/// What the launcher calls the job; empty if it has no name.
std::string job_name(const Launcher& launcher, const Environment& environment) {
  if (!find(environment, launcher.job.front())) return "";
  std::vector<std::string> parts;
  for (const std::string& variable : launcher.job) parts.push_back(find(environment, variable).value_or(""));
  return fmt::format("{}", fmt::join(parts, "."));
}

/// Where the ranks meet that have no MASTER_ADDR.
Status meet_without_address(const Launcher& launcher, const Environment& environment, JobPlace& place) {
  const std::optional<std::string> local = find(environment, launcher.local_size);
  const std::string job = job_name(launcher, environment);
  if (job.empty() || local != std::to_string(place.size))
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format(
            "{} started {} ranks but gives no place to meet: set MASTER_ADDR to the host of rank 0 and MASTER_PORT "
            "to a free port there",
            launcher.name, place.size));
  place.port = kFirstJobPort + static_cast<int>(xxh3(std::as_bytes(std::span(job))) % kJobPorts);
  return {};
}

}  // namespace

Result<JobPlace> job_place(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!find(environment, launcher.rank) && !find(environment, launcher.size)) continue;
    JobPlace place;
    place.launcher = launcher.name;
    ACCORD_ASSIGN_OR_RETURN(place.size, number(environment, launcher.size, 1, kMostRanks));
    ACCORD_ASSIGN_OR_RETURN(place.rank, number(environment, launcher.rank, 0, place.size - 1));
    const std::string restart = find(environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
    place.job = fmt::format("{}/{}/{}", job_name(launcher, environment), restart, place.size);
    if (place.size == 1) return place;
    const std::optional<std::string> address = find(environment, "MASTER_ADDR");
    if (!address || address->empty()) {
      ACCORD_RETURN_IF_ERROR(meet_without_address(launcher, environment, place));
      return place;
    }
    place.address = *address;
    int master_port = kDefaultPort;
    if (find(environment, "MASTER_PORT")) {
      ACCORD_ASSIGN_OR_RETURN(master_port, number(environment, "MASTER_PORT", 1, 65535 - kPortsTried));
    }
    place.port = master_port + 1;
    place.job += fmt::format("/{}", master_port);
    return place;
  }
  return JobPlace();
}

namespace {

/// How long one port may take to answer.
constexpr Duration kTry = std::chrono::milliseconds(200);
constexpr auto kPause = std::chrono::milliseconds(20);

/// The store of this job at `port`, null if there is none or nobody listens.
std::shared_ptr<Store> store_at(const JobPlace& job, int port, Deadline deadline) {
  const auto patience = [&] { return std::min(kTry, deadline.remaining()); };
  const std::string url = store::tcp_url(job.address, port);
  const Result<std::vector<store::Address>> addresses = store::resolve(job.address, port);
  // One look first: a client goes on trying, and most ports have nobody.
  const auto answers = [&](const store::Address& address) {
    return store::connect_to(address, Deadline::in(patience()), url).ok();
  };
  if (!addresses.ok() || std::none_of(addresses->begin(), addresses->end(), answers)) return nullptr;
  Result<std::shared_ptr<Store>> found = make_tcp_store(StoreRole::kClient, job.address, port, patience());
  if (!found.ok()) return nullptr;
  const Result<std::string> name = (*found)->get(kJobKey, patience());
  return name.ok() && *name == job.job ? *found : nullptr;
}

Result<std::shared_ptr<Store>> host_store(const JobPlace& job, Deadline deadline) {
  Status last;
  for (int port = job.port; port < job.port + kPortsTried; ++port) {
    Result<std::shared_ptr<Store>> store = make_tcp_store(StoreRole::kHost, job.address, port, deadline.remaining());
    if (store.ok()) {
      ACCORD_RETURN_IF_ERROR((*store)->set(kJobKey, job.job));
      return store;
    }
    // The other ranks could not tell that store from this job's.
    if (store_at(job, port, deadline) != nullptr)
      return Status(
          StatusCode::kWrongState,
          fmt::format("rank 0 cannot host the store of the job: another job of the same name and size has its "
                      "own at {}; give one of them another MASTER_PORT",
                      store::tcp_url(job.address, port)));
    last = store.status();
  }
  return last.with_context(
      fmt::format("rank 0 cannot host the store of the job at ports {} to {}", job.port, job.port + kPortsTried - 1));
}

Result<std::shared_ptr<Store>> find_store(const JobPlace& job, Deadline deadline) {
  do {
    // All of them: a port that rank 0 found taken may be free by now.
    for (int port = job.port; port < job.port + kPortsTried; ++port)
      if (std::shared_ptr<Store> store = store_at(job, port, deadline)) return store;
    std::this_thread::sleep_for(std::min<Duration>(kPause, deadline.remaining()));
  } while (!deadline.passed());
  const Status resolved = store::resolve(job.address, job.port).status();
  return Status(
      StatusCode::kTimeout,
      fmt::format("rank {} found no store of its job at {}, ports {} to {}: {}", job.rank, job.address, job.port,
                  job.port + kPortsTried - 1,
                  resolved.ok() ? "rank 0 did not come in time, or the ports are blocked" : resolved.message()),
      {0});
}

}  // namespace

Result<std::shared_ptr<Store>> job_store(const JobPlace& job, Deadline deadline) {
  static std::mutex mutex;
  static std::shared_ptr<Store> kept;
  const std::lock_guard lock(mutex);
  if (kept != nullptr) return kept;
  if (job.size == 1) {
    kept = make_memory_store();
  } else {
    ACCORD_ASSIGN_OR_RETURN(kept, job.rank == 0 ? host_store(job, deadline) : find_store(job, deadline));
  }
  return kept;
}

void decline_job(const JobPlace& job, const std::string& name, const Status& why) {
  constexpr Duration kOthersCome = std::chrono::seconds(5);
  if (job.size == 1) return;
  const JoinRequest request{
      .rank = job.rank, .size = job.size, .options = {.name = name}, .deadline = Deadline::in(kOthersCome)};
  const Result<std::shared_ptr<Store>> store = job_store(job, request.deadline);
  if (!store.ok()) return;
  decline(request, *store, why);
  if (job.rank == 0) await_readers(**store, request, kHello);
}

}  // namespace accord::comm
