// The kernel's requirements (ptrace(2), "access mode checking"): the same user on both sides, a dumpable process, and
// Yama's permission. A process reads itself to find out whether the system call exists and no seccomp filter forbids
// it.
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

// Scope 0: any process that is otherwise allowed. 1: descendants, and processes named by the target. Above: only
// privileged processes.
bool yama_allows() {
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
  if (!reads_itself() || !yama_allows()) return "";
  return fmt::format("user-{}-{}/pid-{}", getuid(), getgid(), *processes);
}

}  // namespace accord::topology
