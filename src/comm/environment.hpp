#pragma once
// Where a launcher put this process: rank, size and meeting point, from the variables of the launchers in use.

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
  int port = 0;                       ///< the first port to try; MASTER_PORT + 1
  std::string job = {};               ///< tells this job's store from those of others: name/restart/ranks/MASTER_PORT
  bool has_host = false;              ///< its launcher hosts the store: no rank does
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (accord run, torchrun, by hand), else Open MPI's, PMI's or Slurm's variables;
/// without any of them one rank. Pure. kInvalidArgument names the variable that is missing or wrong.
Result<JobPlace> job_place(const std::map<std::string, std::string>& environment);

/// The store of the job, made on first use and kept as long as the process: rank 0, or its launcher, hosts it at the
/// first free port of kPortsTried from `port`, the others find it there. kWrongState if another job of the same name
/// is there already, or another process of this rank; kNotFound at once if `address` has no address.
Result<std::shared_ptr<Store>> job_store(const JobPlace& job, Deadline deadline);
inline constexpr int kPortsTried = 16;

/// The store of `job`, hosted by this process, which is rank 0 or the job's launcher.
Result<std::shared_ptr<Store>> host_store(const JobPlace& job, Deadline deadline);

/// This rank cannot take part in the group of that name, because of `why`: tells the other ranks of the job, as far as they come within
/// a few seconds; rank 0, whose store goes with it, waits for them that long.
void decline_job(const JobPlace& job, const std::string& name, const Status& why);

}  // namespace accord::comm
