#pragma once
// Finds this process's rank, size and meeting point in the environment variables of the common launchers.

#include <map>
#include <memory>
#include <string>

#include "accord/status.hpp"
#include "accord/store.hpp"
#include "base/clock.hpp"

namespace accord::comm {

/// This process's place in its job.
struct JobPlace {
  std::string launcher = "none";  ///< "RANK and WORLD_SIZE", "Open MPI", "PMI", "Slurm", "none"
  Rank rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  ///< host of rank 0
  int port = 0;                       ///< the first port to try: MASTER_PORT + 1; 0: the job has one rank for ever
  std::string job = {};               ///< distinguishes the stores of jobs: name/restart/ranks/MASTER_PORT
  bool has_host = false;              ///< the launcher hosts the store, so no rank does
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (accord run, torchrun, by hand), else the variables of Open
/// MPI, PMI or Slurm; without any of them returns a job of one rank. Pure. kInvalidArgument names the variable that
/// is missing or wrong.
Result<JobPlace> job_place(const std::map<std::string, std::string>& environment);

/// Returns the store of the job, created on first use and kept as long as the process lives. Rank 0 or its launcher
/// hosts it at the first free port of kPortsTried from `port`; the others look for it there. kWrongState if another
/// job of the same name, or another process of this rank, is there already. kNotFound at once if `address` does not
/// resolve.
Result<std::shared_ptr<Store>> job_store(const JobPlace& job, Deadline deadline);
inline constexpr int kPortsTried = 16;

/// Creates the store of `job`, hosted by this process, which is rank 0 or the job's launcher.
Result<std::shared_ptr<Store>> host_store(const JobPlace& job, Deadline deadline);

/// Notifies the other ranks of the job that this rank cannot take part in the group `name`, because of `why`, as far
/// as they arrive within a few seconds. Rank 0, whose store ends with it, waits that long for them.
void decline_job(const JobPlace& job, const std::string& name, const Status& why);

}  // namespace accord::comm
