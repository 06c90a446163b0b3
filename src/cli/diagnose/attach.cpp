// A process that uses accord has an open file named flight::kFileName, which is found in /proc/PID/fd. A forked
// child has its parent's file too; the process number in the file tells whose it is. Each record names the processes
// of the other ranks.
#include "cli/diagnose/attach.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <set>

#include "base/fd.hpp"
#include "base/text.hpp"
#include "flight/read_record.hpp"

namespace accord::cli {
namespace {

namespace fs = std::filesystem;

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Returns the value of the line "NAME:\tvalue" in /proc/PID/status; empty if there is none.
std::string status_line(int process, std::string_view name) {
  const Result<std::string> status = read_file(fmt::format("/proc/{}/status", process), std::size_t{1} << 16);
  if (!status.ok()) return "";
  for (const std::string_view line : split_text(*status, '\n'))
    if (line.starts_with(name) && line.substr(name.size()).starts_with(":\t"))
      return std::string(line.substr(name.size() + 2));
  return "";
}

/// The number of the process as it sees itself, which differs inside a container.
int own_number(int process) {
  const std::string numbers = status_line(process, "NSpid");
  const auto words = split_text(numbers, '\t');
  return words.empty() ? process : number_of(words.back()).value_or(process);
}

Condition condition_of(int process) {
  const std::string state = status_line(process, "State");
  if (state.empty() || state[0] == 'Z' || state[0] == 'X') return Condition::kGone;
  return state[0] == 'T' || state[0] == 't' ? Condition::kStopped : Condition::kRunning;
}

/// A file of flight records, mapped.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) return errno_status(errno, path);
    struct stat info = {};
    if (fstat(fd.get(), &info) != 0) return errno_status(errno, path);
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    // Reading a mapped file that has shrunk would end this process, so the file must be sealed.
    if (info.st_size < static_cast<off_t>(flight::kPage) || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
      return Status(StatusCode::kCorrupt, path + ": not a flight record");
    const auto size = static_cast<std::size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) return errno_status(errno, path);
    return MappedFile(std::span(static_cast<const std::byte*>(address), size));
  }
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  const flight::FileHeader& header() const { return *reinterpret_cast<const flight::FileHeader*>(bytes_.data()); }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

void read_records(const MappedFile& file, std::vector<FlightLog>& logs) {
  const flight::FileHeader& header = file.header();
  const flight::Timebase time{
      .source = static_cast<TickSource>(header.tick_source),
      .start = {.ticks = header.ticks, .monotonic_ns = header.monotonic_ns, .unix_ns = header.unix_ns}};
  const std::size_t end =
      std::min<std::size_t>(flight::word(header.end).load(std::memory_order_acquire), file.bytes().size());
  for (std::size_t at = flight::kPage; at + sizeof(flight::RecordHeader) <= end;) {
    const auto& record = *reinterpret_cast<const flight::RecordHeader*>(file.bytes().data() + at);
    const std::size_t bytes = record.bytes;
    if (bytes == 0 || bytes % flight::kPage != 0 || bytes > end - at) return;
    Result<std::optional<FlightLog>> log = flight::read_record(file.bytes().subspan(at, bytes), time);
    if (log.ok() && *log) logs.push_back(**std::move(log));
    at += bytes;
  }
}

std::vector<int> children_of(int process) {
  std::vector<int> children;
  std::error_code error;
  for (fs::directory_iterator thread(fmt::format("/proc/{}/task", process), error), end; !error && thread != end;
       thread.increment(error)) {
    const Result<std::string> list = read_file((thread->path() / "children").string());
    if (!list.ok()) continue;
    for (const std::string_view word : split_text(*list, ' '))
      if (const auto child = number_of(word)) children.push_back(*child);
  }
  return children;
}

/// The evidence about a job, collected from process to process.
class Job {
 public:
  /// True if `process` or a descendant of it has a communicator.
  Result<bool> add_tree(int process) {
    ACCORD_ASSIGN_OR_RETURN(const bool found, add(process));
    bool below = found;
    for (const int child : children_of(process)) {
      const Result<bool> more = add_tree(child);  // a child that ends meanwhile is no error
      below = below || (more.ok() && *more);
    }
    return below;
  }

  std::vector<GroupEvidence> evidence() {
    for (std::size_t i = 0; i < logs_.size(); ++i) {  // logs_ grows during the loop
      const FlightLog log = logs_[i];
      for (const flight::Peer& peer : log.peers)
        if (peer.host == log.peers[static_cast<std::size_t>(log.rank)].host) (void)add(peer.process);
    }
    std::map<std::string, int> hosts;  // for each communicator, the number of this host
    for (const FlightLog& log : logs_) hosts[log.id] = log.peers[static_cast<std::size_t>(log.rank)].host;
    std::vector<GroupEvidence> groups = group_by_communicator(logs_);
    for (GroupEvidence& group : groups)
      for (RankEvidence& rank : group.ranks) {
        rank.condition = rank.host != hosts[group.id] ? Condition::kElsewhere : condition_of(rank.process);
        if (rank.log || rank.condition == Condition::kElsewhere || rank.condition == Condition::kGone) continue;
        rank.condition = hidden_.contains(rank.process) ? Condition::kHidden : Condition::kLeft;
      }
    return groups;
  }

 private:
  Result<bool> add(int process) {
    if (const auto seen = has_logs_.find(process); seen != has_logs_.end()) return seen->second;
    has_logs_[process] = false;
    Result<std::vector<FlightLog>> logs = logs_of_process(process);
    if (!logs.ok() && logs.status().code() != StatusCode::kNotFound) hidden_.insert(process);
    if (!logs.ok()) return logs.status();
    for (FlightLog& log : *logs) logs_.push_back(std::move(log));
    return has_logs_[process] = !logs->empty();
  }

  std::vector<FlightLog> logs_;
  std::map<int, bool> has_logs_;  // for each process that was inspected
  std::set<int> hidden_;
};

}  // namespace

Result<std::vector<FlightLog>> logs_of_process(int process) {
  const std::string folder = fmt::format("/proc/{}/fd", process);
  const std::string wanted = fmt::format("/memfd:{} (deleted)", flight::kFileName);
  if (condition_of(process) == Condition::kGone)
    return Status(StatusCode::kNotFound, fmt::format("there is no process {}", process));
  std::vector<FlightLog> logs;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code vanished;
    if (fs::read_symlink(entry->path(), vanished) != wanted) continue;
    const Result<MappedFile> file = MappedFile::open(entry->path().string());
    if (!file.ok()) continue;  // it vanished, or is another program's file of the same name
    if (flight::word(file->header().magic).load(std::memory_order_acquire) != flight::kFileMagic) continue;
    if (file->header().process == own_number(process)) read_records(*file, logs);
  }
  if (error == std::errc::permission_denied)
    return Status(StatusCode::kIo,
                  fmt::format("process {} belongs to another user; only that user and root may inspect it", process));
  if (error) return errno_status(error.value(), folder);
  return logs;
}

Result<std::vector<GroupEvidence>> attach(const std::vector<int>& processes) {
  Job job;
  for (const int process : processes) {
    ACCORD_ASSIGN_OR_RETURN(const bool found, job.add_tree(process));
    if (!found)
      return Status(
          StatusCode::kNotFound,
          fmt::format("neither process {} nor any process that it started has a communicator of accord", process));
  }
  return job.evidence();
}

std::vector<GroupEvidence> attach_if_possible(const std::vector<int>& processes) {
  Job job;
  for (const int process : processes) (void)job.add_tree(process);
  return job.evidence();
}

}  // namespace accord::cli
