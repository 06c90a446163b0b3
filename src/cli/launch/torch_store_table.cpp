// The protocol of PyTorch's TCPStore, from torch/csrc/distributed/c10d/TCPStoreBackend.hpp of PyTorch 2.11 to 2.15,
// which is the same for its two servers (libuv and poll). A request is one byte that gives its kind, then its fields.
// A text is its length (u64) and its bytes; numbers are in the byte order of the machine. The first request must be
// VALIDATE. A client may send requests before it has read the answers to earlier ones, and CANCEL_WAIT while it
// waits.
//
//   VALIDATE u32 magic                  PING u32                 -> u32, the same
//   SET key value                       COMPARE_SET key old new  -> value
//   GET key -> value, "" if absent      ADD key i64              -> i64
//   CHECK n keys -> u8, 0 if all exist  WAIT n keys              -> u8 0, when all exist
//   GETNUMKEYS -> i64                   DELETE_KEY key           -> i64, how many
//   APPEND key value                    MULTI_GET n keys         -> n values
//   MULTI_SET n (key value)             CANCEL_WAIT              -> u8 1
//   QUEUE_PUSH key value                QUEUE_POP key            -> i64 length before, and a value if there was one
//   QUEUE_LEN key -> i64                LIST_KEYS                -> i64 n, n keys
//   BARRIER key i64 n -> u8 0, when n clients have arrived
#include "cli/launch/torch_store_table.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace accord::cli {
namespace {

enum class Query : std::uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kKeyCount,
  kDelete,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kPush,
  kPop,
  kLength,
  kListKeys,
  kBarrier,
};

constexpr std::uint32_t kMagic = 0x3C85F7CE;
constexpr std::uint8_t kReady = 0, kNotReady = 1;
constexpr std::uint8_t kStopWaiting = 0, kWaitCanceled = 1;
// Limits of PyTorch's own server.
constexpr std::uint64_t kMaxTextBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMaxKeys = 128 * 1024;

template <typename Number>
void write_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void write_text(std::string& bytes, std::string_view text) {
  write_number<std::uint64_t>(bytes, text.size());
  bytes += text;
}

std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace

/// Reads the fields of one request, as far as they have arrived. After a failed read, unread() tells whether more
/// bytes can complete the request.
class TorchStoreTable::Request {
 public:
  explicit Request(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  bool read(Number& number) {
    if (bytes_.size() - at_ < sizeof number) return false;
    std::memcpy(&number, bytes_.data() + at_, sizeof number);
    at_ += sizeof number;
    return true;
  }

  bool read(std::string& text) {
    std::uint64_t size = 0;
    if (!read(size)) return false;
    wrong_ = size > kMaxTextBytes;
    if (wrong_ || bytes_.size() - at_ < size) return false;
    text = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }

  bool read(std::vector<std::string>& texts, std::size_t in_each = 1) {
    std::uint64_t count = 0;
    if (!read(count)) return false;
    wrong_ = count > kMaxKeys;
    if (wrong_) return false;
    texts.clear();
    for (std::uint64_t i = 0; i < count * in_each; ++i) {
      if (!read(texts.emplace_back())) return false;
    }
    return true;
  }

  template <typename... Fields>
  bool read_all(Fields&... fields) {
    return (read(fields) && ...);
  }

  Outcome unread() const { return wrong_ ? Outcome::kWrong : Outcome::kIncomplete; }
  std::size_t size() const { return at_; }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  bool wrong_ = false;
};

bool TorchStoreTable::receive(Client client, std::string_view bytes) {
  State& state = clients_[client];
  state.received += bytes;
  std::size_t done = 0;
  while (done < state.received.size()) {
    Request request(std::string_view(state.received).substr(done));
    const Outcome outcome = execute(client, state, request);
    if (outcome == Outcome::kWrong) return false;
    if (outcome == Outcome::kIncomplete) break;
    done += request.size();
  }
  state.received.erase(0, done);
  return true;
}

void TorchStoreTable::drop(Client client) {
  stop_waiting(client);
  clients_.erase(client);
  answers_.erase(client);
}

std::map<TorchStoreTable::Client, std::string> TorchStoreTable::pop_answers() { return std::exchange(answers_, {}); }

TorchStoreTable::Outcome TorchStoreTable::execute(Client client, State& state, Request& request) {
  Query query = Query::kValidate;
  std::string key;
  std::string text;
  std::vector<std::string> keys;
  std::uint32_t word = 0;
  (void)request.read(query);
  if (query == Query::kValidate) {
    if (!request.read(word)) return request.unread();
    state.valid = word == kMagic;
    return state.valid ? Outcome::kDone : Outcome::kWrong;
  }
  if (!state.valid) return Outcome::kWrong;
  switch (query) {
    case Query::kPing:
      if (!request.read(word)) return request.unread();
      write_number(answers_[client], word);
      return Outcome::kDone;
    case Query::kSet:
      if (!request.read_all(key, text)) return request.unread();
      put(key, std::move(text));
      return Outcome::kDone;
    case Query::kAppend:
      if (!request.read_all(key, text)) return request.unread();
      put(key, value(key) + text);
      return Outcome::kDone;
    case Query::kGet:
      if (!request.read(key)) return request.unread();
      write_text(answers_[client], value(key));
      return Outcome::kDone;
    case Query::kCheck:
      if (!request.read(keys)) return request.unread();
      write_number(answers_[client],
                   std::all_of(keys.begin(), keys.end(), [this](const std::string& k) { return contains(k); })
                       ? kReady
                       : kNotReady);
      return Outcome::kDone;
    case Query::kKeyCount: write_number<std::int64_t>(answers_[client], std::ssize(values_)); return Outcome::kDone;
    case Query::kDelete:
      if (!request.read(key)) return request.unread();
      write_number<std::int64_t>(answers_[client], static_cast<std::int64_t>(values_.erase(key)));
      return Outcome::kDone;
    case Query::kPush:
      if (!request.read_all(key, text)) return request.unread();
      queues_[key].push_back(std::move(text));
      wake(key, 1);
      return Outcome::kDone;
    case Query::kLength:
      if (!request.read(key)) return request.unread();
      write_number<std::int64_t>(answers_[client], queues_.contains(key) ? std::ssize(queues_[key]) : 0);
      return Outcome::kDone;
    case Query::kCancelWait:
      stop_waiting(client);
      write_number(answers_[client], kWaitCanceled);
      return Outcome::kDone;
    case Query::kListKeys: list_keys(client); return Outcome::kDone;
    case Query::kWait: return wait(client, state, request);
    case Query::kBarrier: return barrier(client, state, request);
    case Query::kAdd: return add(client, request);
    case Query::kCompareSet: return compare_set(client, request);
    case Query::kMultiGet: return multi_get(client, request);
    case Query::kMultiSet: return multi_set(request);
    case Query::kPop: return pop(client, request);
    case Query::kValidate: break;
  }
  return Outcome::kWrong;  // of a later PyTorch
}

TorchStoreTable::Outcome TorchStoreTable::wait(Client client, State& state, Request& request) {
  std::vector<std::string> keys;
  if (!request.read(keys)) return request.unread();
  for (const std::string& key : keys) {
    if (contains(key)) continue;
    waiting_[key].push_back(client);
    ++state.awaited;
  }
  if (state.awaited == 0) write_number(answers_[client], kStopWaiting);
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::barrier(Client client, State& state, Request& request) {
  std::string key;
  std::int64_t size = 0;
  if (!request.read_all(key, size)) return request.unread();
  const std::optional<std::int64_t> before = values_.contains(key) ? number_in(value(key)) : 0;
  if (!before.has_value()) return Outcome::kWrong;
  values_[key] = std::to_string(*before + 1);
  if (*before + 1 < size) {
    waiting_[key].push_back(client);
    ++state.awaited;
    return Outcome::kDone;
  }
  wake(key, std::numeric_limits<std::size_t>::max());
  write_number(answers_[client], kStopWaiting);
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::add(Client client, Request& request) {
  std::string key;
  std::int64_t amount = 0;
  if (!request.read_all(key, amount)) return request.unread();
  const std::optional<std::int64_t> before = values_.contains(key) ? number_in(value(key)) : 0;
  std::int64_t sum = 0;
  if (!before.has_value() || __builtin_add_overflow(*before, amount, &sum)) return Outcome::kWrong;
  put(key, std::to_string(sum));
  write_number(answers_[client], sum);
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::compare_set(Client client, Request& request) {
  std::string key;
  std::string expected;
  std::string wanted;
  if (!request.read_all(key, expected, wanted)) return request.unread();
  if (!values_.contains(key) && !expected.empty()) {
    write_text(answers_[client], expected);  // as in PyTorch: absent is not equal, and the answer does not tell
    return Outcome::kDone;
  }
  if (value(key) == expected) put(key, std::move(wanted));
  write_text(answers_[client], value(key));
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::multi_get(Client client, Request& request) {
  std::vector<std::string> keys;
  if (!request.read(keys)) return request.unread();
  for (const std::string& key : keys) write_text(answers_[client], value(key));
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::multi_set(Request& request) {
  std::vector<std::string> pairs;
  if (!request.read(pairs, 2)) return request.unread();
  for (std::size_t i = 0; i < pairs.size(); i += 2) put(pairs[i], std::move(pairs[i + 1]));
  return Outcome::kDone;
}

TorchStoreTable::Outcome TorchStoreTable::pop(Client client, Request& request) {
  std::string key;
  if (!request.read(key)) return request.unread();
  std::deque<std::string>& queue = queues_[key];
  write_number<std::int64_t>(answers_[client], std::ssize(queue));
  if (queue.empty()) return Outcome::kDone;
  write_text(answers_[client], queue.front());
  queue.pop_front();
  return Outcome::kDone;
}

void TorchStoreTable::list_keys(Client client) {
  std::string& answer = answers_[client];
  write_number<std::int64_t>(answer, std::ssize(values_));
  for (const auto& [key, value] : values_) write_text(answer, key);
}

bool TorchStoreTable::contains(const std::string& key) const {
  const auto queue = queues_.find(key);
  return values_.contains(key) || (queue != queues_.end() && !queue->second.empty());
}

const std::string& TorchStoreTable::value(const std::string& key) const {
  static const std::string absent;
  const auto found = values_.find(key);
  return found == values_.end() ? absent : found->second;
}

void TorchStoreTable::put(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  wake(key, std::numeric_limits<std::size_t>::max());
}

// Counts `key` as present for the clients that wait for it, until `most` of them wait for nothing else and are
// answered.
void TorchStoreTable::wake(const std::string& key, std::size_t most) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  std::deque<Client>& clients = found->second;
  for (; most > 0 && !clients.empty(); clients.pop_front()) {
    if (--clients_[clients.front()].awaited > 0) continue;
    write_number(answers_[clients.front()], kStopWaiting);
    --most;
  }
  if (clients.empty()) waiting_.erase(found);
}

void TorchStoreTable::stop_waiting(Client client) {
  clients_[client].awaited = 0;
  for (auto& [key, clients] : waiting_) std::erase(clients, client);
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace accord::cli
