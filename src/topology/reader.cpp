// What the kernel asks (ptrace(2), "access mode checking"): the same user on both sides, a process that may be dumped, and Yama's consent.
// Whether the system call is there at all, and not forbidden by a seccomp filter, shows when a process reads itself.
#include "topology/reader.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "topology/namespaces.hpp"

namespace accord::topology {
namespace {

bool reads_itself() {
  const long here = 1;
  long there = 0;
  const iovec to = {&there, sizeof there}, from = {const_cast<long*>(&here), sizeof here};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof here;
}

// 0: whoever may otherwise; 1: descendants, and whom the process names; above: nobody without a privilege.
bool yama_consents() {
  const Result<std::string> scope = read_file("/proc/sys/kernel/yama/ptrace_scope", 16);
  if (!scope.ok() || scope->empty() || (*scope)[0] == '0') return true;
  return (*scope)[0] == '1' && prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0;
}

}  // namespace

std::string this_reader() {
  const Result<Config>& settings = config();
  if (!settings.ok() || !settings->single_copy) return "";
  const bool one_user = getuid() == geteuid() && getgid() == getegid();
  const Result<std::uint64_t> processes = namespace_number("pid");
  if (!one_user || prctl(PR_GET_DUMPABLE) != 1 || !processes.ok()) return "";
  if (!reads_itself() || !yama_consents()) return "";
  return fmt::format("user-{}-{}/pid-{}", getuid(), getgid(), *processes);
}

}  // namespace accord::topology
