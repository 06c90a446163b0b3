// A message is a sequence of entries, each a header and its data padded to eight bytes. Bytes are stored in order of
// arrival and words with release order, so that a thread that loads a word with acquire sees everything written
// before it, as in shared memory. Sources are copied into the message at once: the piece is still in the cache when
// the kernel copies it, and the caller's memory is never in use afterwards, whatever happens to the peer.
#include "transport/ucx/stream.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace accord::transport::ucx {
namespace {

constexpr std::size_t kMaxInFlight = 32;  // messages per link; beyond that, write_some() waits
constexpr std::size_t kUnit = 8;
constexpr std::size_t kMinRoom = 1024;  // less room than this is left empty when data continue in the next message

enum Kind : std::uint64_t { kBytes, kWord, kPackets, kRead, kReadBack, kAcknowledgeRequest, kAcknowledgement };

constexpr std::size_t padded(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

void store_word(std::byte* at, std::uint64_t word) {
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at)).store(word, std::memory_order_release);
}

}  // namespace

Stream::Stream(Worker& worker, std::span<std::byte> window)
    : worker_(worker),
      window_(window),
      id_([&] {
        const std::lock_guard lock(worker.mutex());
        return worker.attach(this);
      }()),
      in_flight_(std::make_shared<std::size_t>(0)) {}

Stream::~Stream() {
  if (worker_.is_inherited()) {
    // Resources of the parent: UCX must not be entered here, and a thread that the child does not have may hold the
    // lock.
    new std::shared_ptr<Route>(std::move(route_));      // NOLINT(bugprone-unhandled-exception-at-new)
    new std::unique_ptr<Message>(std::move(filling_));  // NOLINT(bugprone-unhandled-exception-at-new)
    return;
  }
  const std::lock_guard lock(worker_.mutex());
  if (!closed_) worker_.detach(id_);
  filling_.reset();
  route_.reset();
}

Status Stream::open(const std::string& worker_address, std::uint64_t peer_id) {
  const std::lock_guard lock(worker_.mutex());
  ACCORD_ASSIGN_OR_RETURN(route_, worker_.route_to(worker_address));
  peer_id_ = peer_id;
  open_ = true;
  for (const Entry& request : std::exchange(early_requests_, {})) answer(request);
  return {};
}

void Stream::close() {
  const std::lock_guard lock(worker_.mutex());
  if (!closed_) worker_.detach(id_);
  closed_ = true;
}

Status Stream::state() const {
  const std::lock_guard lock(worker_.mutex());
  return state_locked();
}

Status Stream::state_locked() const {
  if (!open_ || route_->failed || damaged_)
    return Status(StatusCode::kPeerLost, damaged_ ? "it sent malformed data" : "the connection to it has failed");
  return {};
}

std::byte* Stream::room_for(std::size_t bytes) {
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.Move): one that was taken is null
  if (filling_ != nullptr && filling_->used + bytes > kMessageBytes) send();
  if (filling_ == nullptr) filling_ = worker_.take_message();
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.Move): send() takes it only to be replaced here
  std::byte* const place = filling_->bytes.data() + filling_->used;
  filling_->used += bytes;
  return place;
}

std::byte* Stream::add(const Entry& entry, std::size_t room) {
  std::byte* const place = room_for(sizeof entry + padded(room));
  std::memcpy(place, &entry, sizeof entry);
  return place + sizeof entry;
}

void Stream::send() {
  urgent_ = false;
  filling_->header = {.receiver = peer_id_, .sequence = ++sent_};
  filling_->route = route_;
  filling_->in_flight = in_flight_;
  worker_.send(std::move(filling_));
}

void Stream::add_bytes(std::span<const std::byte> source, std::size_t offset, std::uint64_t kind) {
  while (!source.empty()) {
    const std::size_t most = kMessageBytes - sizeof(Entry);
    const std::size_t left = filling_ == nullptr ? kMessageBytes : kMessageBytes - filling_->used;
    const std::size_t room = left >= sizeof(Entry) + kMinRoom ? left - sizeof(Entry) : most;
    const std::size_t now = std::min(source.size(), room / kUnit * kUnit);
    std::memcpy(add({.kind = kind, .offset = offset, .bytes = now}, now), source.data(), now);
    source = source.subspan(now);
    offset += now;
  }
}

void Stream::write(std::span<const std::byte> source, std::size_t offset) {
  const std::lock_guard lock(worker_.mutex());
  add_bytes(source, offset, kBytes);
  urgent_ = true;
}

bool Stream::has_room() const {
  const std::lock_guard lock(worker_.mutex());
  return *in_flight_ < kMaxInFlight;
}

std::size_t Stream::write_some(std::span<const std::byte> source, std::size_t offset) {
  const std::lock_guard lock(worker_.mutex());
  const std::size_t whole = source.size();
  while (!source.empty() && *in_flight_ < kMaxInFlight) {
    const std::size_t now = std::min(source.size(), kMessageBytes - sizeof(Entry));
    add_bytes(source.first(now), offset, kBytes);
    urgent_ = true;
    source = source.subspan(now);
    offset += now;
  }
  return whole - source.size();
}

void Stream::write_word(std::uint64_t word, std::size_t offset) {
  const std::lock_guard lock(worker_.mutex());
  add({.kind = kWord, .offset = offset, .word = word}, 0);
  urgent_ = true;
}

void Stream::write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                           std::uint64_t word) {
  const std::lock_guard lock(worker_.mutex());
  const Entry entry{.kind = kPackets, .offset = offset, .bytes = source.size(), .word = word, .lines = lines};
  std::byte* const place = add(entry, source.size());
  urgent_ = true;
  if (!source.empty()) std::memcpy(place, source.data(), source.size());
}

void Stream::write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word,
                        std::size_t word_offset) {
  const std::lock_guard lock(worker_.mutex());
  add_bytes(source, offset, kBytes);
  add({.kind = kWord, .offset = word_offset, .word = word}, 0);
}

void Stream::flush() {
  const std::lock_guard lock(worker_.mutex());
  if (urgent_ && filling_ != nullptr) send();
}

void Stream::flush_notes() {
  const std::lock_guard lock(worker_.mutex());
  if (filling_ != nullptr) send();
}

void Stream::request_acknowledgement() {
  const std::lock_guard lock(worker_.mutex());
  if (!open_) return;
  add({.kind = kAcknowledgeRequest}, 0);
  send();
}

bool Stream::is_acknowledged() const {
  const std::lock_guard lock(worker_.mutex());
  return is_acknowledged_;
}

void Stream::receive(std::uint64_t sequence, std::span<const std::byte> message) {
  damaged_ = damaged_ || sequence != ++received_;
  while (!damaged_ && !message.empty()) {
    Entry entry;
    if (message.size() < sizeof entry) break;
    std::memcpy(&entry, message.data(), sizeof entry);
    message = message.subspan(sizeof entry);
    const bool has_data = entry.kind == kBytes || entry.kind == kPackets || entry.kind == kReadBack;
    const std::size_t bytes = has_data ? entry.bytes : 0;
    damaged_ = bytes > message.size() || padded(bytes) > message.size();
    if (damaged_) return;
    apply(entry, message.first(bytes));
    message = message.subspan(padded(bytes));
  }
  damaged_ = damaged_ || !message.empty();
}

bool Stream::fits(std::size_t offset, std::size_t bytes) const {
  return offset <= window_.size() && bytes <= window_.size() - offset;
}

void Stream::apply(const Entry& entry, std::span<const std::byte> data) {
  switch (entry.kind) {
    case kBytes:
      if (damaged_ = !fits(entry.offset, data.size()); damaged_) return;
      std::memcpy(window_.data() + entry.offset, data.data(), data.size());
      return;
    case kWord:
      if (damaged_ = entry.offset % kUnit != 0 || !fits(entry.offset, sizeof entry.word); damaged_) return;
      store_word(window_.data() + entry.offset, entry.word);
      return;
    case kPackets: return apply_packets(entry, data);
    case kRead:
      if (damaged_ = !fits(entry.offset, entry.bytes); damaged_) return;
      return answer(entry);
    case kReadBack: {
      const auto read = reads_.find(entry.word);
      if (read == reads_.end()) return;  // abandoned
      const std::span<std::byte> rest = read->second.destination.subspan(read->second.arrived);
      if (damaged_ = data.size() > rest.size(); damaged_) return;
      std::memcpy(rest.data(), data.data(), data.size());
      read->second.arrived += data.size();
      return;
    }
    case kAcknowledgeRequest: return answer(entry);
    case kAcknowledgement: is_acknowledged_ = true; return;
    default: damaged_ = true;
  }
}

void Stream::apply_packets(const Entry& entry, std::span<const std::byte> data) {
  const PacketLines& lines = entry.lines;
  const bool possible = lines.data_bytes > 0 && lines.data_bytes <= lines.word_at && lines.word_at % kUnit == 0 &&
                        lines.word_at + kUnit <= lines.stride && lines.stride % kUnit == 0 &&
                        entry.offset % kUnit == 0 && lines.count <= window_.size() / lines.stride &&
                        fits(entry.offset, std::size_t{lines.count} * lines.stride) &&
                        data.size() <= std::size_t{lines.count} * lines.data_bytes;
  if (damaged_ = !possible; damaged_) return;
  std::byte* line = window_.data() + entry.offset;
  for (std::uint32_t i = 0; i < lines.count; ++i, line += lines.stride) {
    const std::size_t now = std::min<std::size_t>(data.size(), lines.data_bytes);
    if (now > 0) std::memcpy(line, data.data(), now);
    data = data.subspan(now);
    store_word(line + lines.word_at, entry.word);
  }
}

// Sent on the same stream, after everything written before.
void Stream::answer(const Entry& request) {
  if (!open_) return early_requests_.push_back(request);
  if (request.kind == kAcknowledgeRequest) {
    add({.kind = kAcknowledgement}, 0);
    return send();
  }
  for (std::size_t done = 0; done < request.bytes;) {
    const std::size_t now = std::min<std::size_t>(request.bytes - done, kMessageBytes - sizeof(Entry));
    std::byte* const place = add({.kind = kReadBack, .bytes = now, .word = request.word}, now);
    std::memcpy(place, window_.data() + request.offset + done, now);
    done += now;
  }
  if (filling_ != nullptr) send();
}

std::uint64_t Stream::begin_read(std::size_t offset, std::span<std::byte> destination) {
  const std::lock_guard lock(worker_.mutex());
  reads_.emplace(next_read_, Read{destination});
  add({.kind = kRead, .offset = offset, .bytes = destination.size(), .word = next_read_}, 0);
  send();
  return next_read_++;
}

Result<bool> Stream::read_ended(std::uint64_t number) {
  const std::lock_guard lock(worker_.mutex());
  const auto read = reads_.find(number);
  const bool whole = read->second.arrived == read->second.destination.size();
  const Status state = state_locked();
  if (whole || !state.ok()) reads_.erase(read);
  if (!whole && !state.ok()) return state;
  return whole;
}

void Stream::abandon_read(std::uint64_t number) {
  const std::lock_guard lock(worker_.mutex());
  reads_.erase(number);
}

}  // namespace accord::transport::ucx
