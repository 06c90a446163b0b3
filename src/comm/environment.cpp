// Launchers differ only in the names of their variables. They do not provide a meeting point. With MASTER_ADDR it is
// a TCP store that rank 0 hosts; jobs of mpirun within one host meet at a port derived from the job's name.
// MASTER_PORT itself belongs to PyTorch, whose store rank 0 or its launcher serves there, so accord's ports begin
// after it. Other programs may listen on these ports too, so the store carries the job's name and a client keeps
// looking until it finds that name. Jobs that were started by hand have no name, and two of them may be given the
// same MASTER_PORT. So each process leaves its place in the store, and a second process with its rank is refused.
#include "comm/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/membership/bootstrap.hpp"
#include "store/tcp_socket.hpp"
#include "topology/topology.hpp"

namespace accord::comm {
namespace {

using Environment = std::map<std::string, std::string>;

constexpr std::string_view kJobKey = "accord/job";
constexpr std::string_view kHostVariable = "ACCORD_JOB_STORE";
constexpr int kDefaultPort = 29500;
constexpr int kFirstJobPort = 20000;  // below the ephemeral ports that other connections use
constexpr int kJobPorts = 12000;

std::optional<std::string> find(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::nullopt : std::optional(found->second);
}

struct Launcher {
  std::string_view name;
  std::string rank, size;
  std::string local_size;        ///< equal to size if the job has one host
  std::vector<std::string> job;  ///< variables that together name the job; it has no name if the first is missing
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

/// The launcher's name for the job; empty if it has none.
std::string job_name(const Launcher& launcher, const Environment& environment) {
  if (!find(environment, launcher.job.front())) return "";
  std::vector<std::string> parts;
  for (const std::string& variable : launcher.job) parts.push_back(find(environment, variable).value_or(""));
  return fmt::format("{}", fmt::join(parts, "."));
}

/// Sets the meeting point of ranks that have no MASTER_ADDR.
Status derive_port(const Launcher& launcher, const Environment& environment, JobPlace& place) {
  const std::optional<std::string> local = find(environment, launcher.local_size);
  const std::string job = job_name(launcher, environment);
  if (job.empty() || local != std::to_string(place.size))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} started {} ranks but gives no address at which they can connect: set MASTER_ADDR to "
                              "the host of rank 0 and MASTER_PORT to a free port there",
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
    ACCORD_ASSIGN_OR_RETURN(place.size, number(environment, launcher.size, 1, kMaxRanks));
    ACCORD_ASSIGN_OR_RETURN(place.rank, number(environment, launcher.rank, 0, place.size - 1));
    const std::string restart = find(environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
    place.job = fmt::format("{}/{}/{}", job_name(launcher, environment), restart, place.size);
    const std::optional<std::string> address = find(environment, "MASTER_ADDR");
    const bool may_grow = !find(environment, "ACCORD_ELASTIC").value_or("").empty() && address;
    if (place.size == 1 && !may_grow) return place;
    if (!address || address->empty()) {
      ACCORD_RETURN_IF_ERROR(derive_port(launcher, environment, place));
      return place;
    }
    place.address = *address;
    int master_port = kDefaultPort;
    if (find(environment, "MASTER_PORT")) {
      ACCORD_ASSIGN_OR_RETURN(master_port, number(environment, "MASTER_PORT", 1, 65535 - kPortsTried));
    }
    place.port = master_port + 1;
    place.job += fmt::format("/{}", master_port);
    place.has_host = find(environment, std::string(kHostVariable)) == place.job;
    return place;
  }
  return JobPlace();
}

namespace {

/// How long one port may take to answer.
constexpr Duration kTry = std::chrono::milliseconds(200);
constexpr auto kEnvironmentPause = std::chrono::milliseconds(20);

/// The store found at one port.
struct FoundStore {
  std::shared_ptr<Store> store;  ///< null if there is none, or nothing listens
  std::string job;               ///< the job that it belongs to
};

FoundStore store_at(const JobPlace& job, int port, Deadline deadline) {
  const auto remaining = [&] { return std::min(kTry, deadline.remaining()); };
  const std::string url = store::tcp_url(job.address, port);
  const Result<std::vector<store::Address>> addresses = store::resolve(job.address, port);
  // Connects once first: a client keeps trying, and most ports have no listener.
  const auto is_listening = [&](const store::Address& address) {
    return store::connect_to(address, Deadline::in(remaining()), url).ok();
  };
  if (!addresses.ok() || std::none_of(addresses->begin(), addresses->end(), is_listening)) return {};
  Result<std::shared_ptr<Store>> found =
      make_tcp_store(StoreRole::kClient, job.address, port, remaining(), deadline.remaining());
  if (!found.ok()) return {};
  Result<std::string> name = (*found)->get(kJobKey, remaining());
  if (!name.ok()) return {};
  return {*std::move(found), *std::move(name)};
}

/// Returns true if the process that published `theirs` as its place has certainly ended.
bool is_gone(const topology::Place& theirs, const topology::Place& mine) {
  return theirs.host == mine.host && theirs.process_space == mine.process_space && kill(theirs.process, 0) != 0 &&
         errno == ESRCH;
}

/// Records this process's place in a store that rank 0 hosts, which therefore ends with this start of the job.
Status claim_place(const JobPlace& job, Store& store, Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(const topology::Place mine, topology::this_place());
  const std::string count_key = fmt::format("accord/count_key/{}", job.rank);
  const std::string place = fmt::format("accord/place/{}", job.rank);
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t count, store.add(count_key, 1));
  if (count == 1) return store.set(place, topology::to_json(mine));
  ACCORD_ASSIGN_OR_RETURN(const std::string text, store.get(place, deadline.remaining()));
  ACCORD_ASSIGN_OR_RETURN(const topology::Place theirs, topology::place_from_json(text));
  if (is_gone(theirs, mine)) return store.set(place, topology::to_json(mine));  // it was restarted
  return Status(
      StatusCode::kWrongState,
      fmt::format("rank {} of {} has already joined the store of the job at {}: process {} of {}; if two jobs share "
                  "MASTER_ADDR and MASTER_PORT ({}), give one of them another MASTER_PORT",
                  job.rank, job.size, store.describe(), theirs.process,
                  theirs.host == mine.host ? "this host" : "another host", job.port - 1),
      {job.rank});
}

}  // namespace

Result<std::shared_ptr<Store>> host_store(const JobPlace& job, Deadline deadline) {
  Status last;
  for (int port = job.port; port < job.port + kPortsTried; ++port) {
    Result<std::shared_ptr<Store>> store = make_tcp_store(StoreRole::kHost, job.address, port, deadline.remaining());
    if (store.ok()) {
      ACCORD_RETURN_IF_ERROR((*store)->set(kJobKey, job.job));
      return store;
    }
    // The other ranks could not distinguish that store from this job's.
    if (store_at(job, port, deadline).job == job.job)
      return Status(
          StatusCode::kWrongState,
          fmt::format("rank 0 cannot host the store of the job: another job with MASTER_PORT {} and {} ranks already "
                      "hosts its store at {}; give one of the jobs another MASTER_PORT",
                      job.port - 1, job.size, store::tcp_url(job.address, port)));
    last = store.status();
    if (last.code() != StatusCode::kIo) break;  // another port would not help
  }
  return last.with_context(
      fmt::format("rank 0 cannot host the store of the job at ports {} to {}", job.port, job.port + kPortsTried - 1));
}

namespace {

/// The part of an error that describes the other job that owns this store.
std::string other_job_text(const std::string& url, const std::string& job) {
  std::vector<std::string_view> parts = split_text(job, '/');
  const std::string_view size = parts.size() >= 3 ? parts[2] : "?";
  return fmt::format("; {} is the store of another job, which has {} ranks", url, size);
}

Result<std::shared_ptr<Store>> find_store(const JobPlace& job, Deadline deadline) {
  std::string other_jobs;
  Status resolved;
  do {
    other_jobs.clear();
    resolved = store::resolve(job.address, job.port).status();
    if (resolved.code() == StatusCode::kNotFound) return resolved.with_context("MASTER_ADDR");
    // Tries all ports: one that rank 0 found taken may have become free.
    for (int port = job.port; port < job.port + kPortsTried; ++port) {
      const FoundStore found = store_at(job, port, deadline);
      if (found.job == job.job) {
        if (!job.has_host) ACCORD_RETURN_IF_ERROR(claim_place(job, *found.store, deadline));
        return found.store;
      }
      if (found.store != nullptr) other_jobs += other_job_text(found.store->describe(), found.job);
    }
    std::this_thread::sleep_for(std::min<Duration>(kEnvironmentPause, deadline.remaining()));
  } while (!deadline.passed());
  return Status(
      StatusCode::kTimeout,
      fmt::format("rank {} of {} found no store of its job at {}, ports {} to {}: {}{}", job.rank, job.size,
                  job.address, job.port, job.port + kPortsTried - 1,
                  resolved.ok() ? "rank 0 did not arrive in time, or the ports are blocked" : resolved.message(),
                  other_jobs),
      {0});
}

}  // namespace

Result<std::shared_ptr<Store>> job_store(const JobPlace& job, Deadline deadline) {
  static std::mutex mutex;
  static std::shared_ptr<Store> kept;
  const std::lock_guard lock(mutex);
  if (kept != nullptr) return kept;
  if (job.port == 0) {
    kept = make_memory_store();
  } else {
    const bool is_host = job.rank == 0 && !job.has_host;
    ACCORD_ASSIGN_OR_RETURN(kept, is_host ? host_store(job, deadline) : find_store(job, deadline));
  }
  return kept;
}

void decline_job(const JobPlace& job, const std::string& name, const Status& why) {
  constexpr Duration kArrivalTimeout = std::chrono::seconds(5);
  if (job.size == 1) return;
  const JoinRequest request{
      .rank = job.rank, .size = job.size, .options = {.name = name}, .deadline = Deadline::in(kArrivalTimeout)};
  const Result<std::shared_ptr<Store>> store = job_store(job, request.deadline);
  if (!store.ok()) return;
  decline(request, *store, why);
  if (job.rank == 0) await_readers(**store, request, kHello);
}

}  // namespace accord::comm
