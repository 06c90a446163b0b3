// A packed plan: a header of ten 32-bit words (magic and version, step, counts), then rows, context, source and
// adapter of each sequence, tokens, tables, copies, wanted rows and new sources, then a hash of everything before it.
// Positions, first rows and table sizes follow from the rest. Each new source is its sequence and its number of
// tensors; each tensor is its dtype, its number of dimensions, its sizes and its bytes.
#include "engine/serving/step_plan.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/hash.hpp"

namespace accord::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "plans are little-endian");

constexpr std::uint32_t kMagic = 0x34504341;  // "ACP4"

struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t block_tokens = 0;
  std::uint64_t step = 0;
  std::uint32_t sequences = 0;
  std::uint32_t blocks = 0;
  std::uint32_t copies = 0;
  std::uint32_t logit_rows = 0;
  std::uint32_t sources = 0;
  std::uint32_t unused = 0;
};
static_assert(sizeof(Header) == 40);

struct PackedSequence {
  std::int32_t rows = 0;
  std::int32_t context = 0;
  std::int32_t source_rows = 0;
  std::int32_t source_slot = 0;
  std::int32_t first_source_row = 0;
  std::int32_t adapter = 0;
};

constexpr std::uint32_t kMaxSourceTensors = 64;
constexpr std::uint32_t kMaxSourceDimensions = 8;

template <typename... Parts>
Status corrupt(fmt::format_string<Parts...> text, Parts&&... parts) {
  return Status(StatusCode::kCorrupt, "a step's plan: " + fmt::format(text, std::forward<Parts>(parts)...));
}

/// Writes values into bytes that are large enough.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : to_(bytes.data()) {}

  template <typename T>
  void write(const T* values, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (count > 0) std::memcpy(to_, values, count * sizeof(T));
    to_ += count * sizeof(T);
  }

 private:
  std::byte* to_;
};

/// Reads values from the front of bytes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t left() const { return bytes_.size(); }

  template <typename T>
  bool read(T* values, std::size_t count) {
    if (count > bytes_.size() / sizeof(T)) return false;
    if (count > 0) std::memcpy(values, bytes_.data(), count * sizeof(T));
    bytes_ = bytes_.subspan(count * sizeof(T));
    return true;
  }
  template <typename T>
  bool read(std::vector<T>& values, std::size_t count) {
    if (count > bytes_.size() / sizeof(T)) return false;
    values.resize(count);
    return read(values.data(), count);
  }

 private:
  std::span<const std::byte> bytes_;
};

std::int32_t blocks_for(std::int64_t tokens, std::int32_t block_tokens) {
  return static_cast<std::int32_t>((tokens + block_tokens - 1) / block_tokens);
}

/// Returns the blocks that follow the sequence's own table.
std::int32_t source_blocks(const PlannedSequence& sequence, std::int32_t block_tokens) {
  return sequence.source_slot == PlannedSequence::kNoSlot ? blocks_for(sequence.source_rows, block_tokens) : 0;
}

Status check_source(const PlannedSequence& sequence, const PlanLimits& limits) {
  if (sequence.source_rows < 0 || sequence.source_rows > limits.max_source)
    return corrupt("it has a sequence with a source of {} rows", sequence.source_rows);
  const bool needs_slot = limits.source_token && sequence.source_rows > 0;
  const bool has_slot = sequence.source_slot >= 0 && sequence.source_slot < limits.max_sequences;
  if (needs_slot ? !has_slot : sequence.source_slot != PlannedSequence::kNoSlot)
    return corrupt("a source of {} rows is in slot {}", sequence.source_rows, sequence.source_slot);
  if (sequence.first_source_row < 0 || sequence.first_source_row > (needs_slot ? sequence.source_rows : 0))
    return corrupt("a sequence continues at row {} of a source of {}", sequence.first_source_row, sequence.source_rows);
  return Status();
}

Status read_sequences(Reader& reader, const Header& header, const PlanLimits& limits, StepPlan& plan) {
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
  if (header.sequences > static_cast<std::uint32_t>(limits.max_sequences))
    return corrupt("it has {} sequences, at most {} are allowed", header.sequences, limits.max_sequences);
  for (std::uint32_t i = 0; i < header.sequences; ++i) {
    PackedSequence packed;
    if (!reader.read(&packed, 1)) return corrupt("it ends within its sequences");
    const std::int64_t tokens = std::int64_t{packed.rows} + packed.context;
    if (packed.rows < 1 || packed.context < 0 || tokens > limits.max_context || rows + packed.rows > limits.max_rows)
      return corrupt("sequence {} has {} rows after {} tokens", i, packed.rows, packed.context);
    const std::int32_t count = blocks_for(tokens, limits.block_tokens);
    const PlannedSequence sequence = {static_cast<std::int32_t>(rows),
                                      packed.rows,
                                      packed.context,
                                      static_cast<std::int32_t>(blocks),
                                      count,
                                      packed.source_rows,
                                      packed.source_slot,
                                      packed.first_source_row,
                                      packed.adapter};
    ACCORD_RETURN_IF_ERROR(check_source(sequence, limits));
    plan.sequences.push_back(sequence);
    for (std::int32_t row = 0; row < packed.rows; ++row) plan.positions.push_back(packed.context + row);
    rows += packed.rows;
    blocks += count + source_blocks(sequence, limits.block_tokens);
  }
  if (header.blocks != static_cast<std::uint64_t>(blocks))
    return corrupt("its tables have {} blocks, but its sequences need {}", header.blocks, blocks);
  return Status();
}

Status read_tensor(Reader& reader, SourceTensor& tensor) {
  std::uint32_t dtype = 0, dims = 0;
  if (!reader.read(&dtype, 1) || !reader.read(&dims, 1)) return corrupt("it ends within a source");
  if (dtype >= static_cast<std::uint32_t>(kDTypeCount)) return corrupt("a source has dtype {}", dtype);
  if (dims > kMaxSourceDimensions) return corrupt("a source has {} dimensions", dims);
  tensor.dtype = static_cast<DType>(dtype);
  if (!reader.read(tensor.shape, dims)) return corrupt("it ends within a source");
  std::size_t bytes = size_of(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes))
      return corrupt("a source has a dimension of {}", size);
  }
  return reader.read(tensor.data, bytes) ? Status() : corrupt("it ends within a source");
}

Status read_sources(Reader& reader, std::uint32_t sources, StepPlan& plan) {
  for (std::uint32_t i = 0; i < sources; ++i) {
    NewSource source;
    std::uint32_t count = 0;
    if (!reader.read(&source.sequence, 1) || !reader.read(&count, 1)) return corrupt("it ends within its sources");
    if (count > kMaxSourceTensors) return corrupt("a source has {} tensors", count);
    std::vector<SourceTensor> tensors(count);
    for (SourceTensor& tensor : tensors) ACCORD_RETURN_IF_ERROR(read_tensor(reader, tensor));
    source.tensors = std::make_shared<const std::vector<SourceTensor>>(std::move(tensors));
    plan.sources.push_back(std::move(source));
  }
  return Status();
}

Status read(Reader& reader, const PlanLimits& limits, StepPlan& plan) {
  Header header;
  if (!reader.read(&header, 1)) return corrupt("its header is cut off");
  if (header.magic != kMagic || header.unused != 0) return corrupt("its magic number is wrong");
  if (header.block_tokens != static_cast<std::uint32_t>(limits.block_tokens))
    return corrupt("its blocks have {} tokens, but those of the cache have {}", header.block_tokens,
                   limits.block_tokens);
  plan.step = header.step;
  plan.block_tokens = limits.block_tokens;
  ACCORD_RETURN_IF_ERROR(read_sequences(reader, header, limits, plan));
  if (!reader.read(plan.tokens, plan.positions.size()) || !reader.read(plan.blocks, header.blocks) ||
      !reader.read(plan.copies, header.copies) || !reader.read(plan.logit_rows, header.logit_rows))
    return corrupt("it is cut off");
  ACCORD_RETURN_IF_ERROR(read_sources(reader, header.sources, plan));
  if (reader.left() > 0) return corrupt("{} bytes follow its end", reader.left());
  return check_plan(plan, limits);
}

}  // namespace

void StepPlan::clear() {
  step = 0;
  tokens.clear();
  positions.clear();
  sequences.clear();
  blocks.clear();
  copies.clear();
  logit_rows.clear();
  sources.clear();
}

std::span<const BlockId> StepPlan::source_table(const PlannedSequence& sequence) const {
  const std::int32_t first = sequence.first_block + sequence.block_count;
  return std::span(blocks).subspan(static_cast<std::size_t>(first),
                                   static_cast<std::size_t>(source_blocks(sequence, block_tokens)));
}

Status check_plan(const StepPlan& plan, const PlanLimits& limits) {
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
  if (plan.block_tokens != limits.block_tokens)
    return corrupt("its blocks have {} tokens, but those of the cache have {}", plan.block_tokens, limits.block_tokens);
  if (plan.sequences.size() > static_cast<std::size_t>(limits.max_sequences))
    return corrupt("it has {} sequences, at most {} are allowed", plan.sequences.size(), limits.max_sequences);
  if (plan.tokens.size() > static_cast<std::size_t>(limits.max_rows) || plan.positions.size() != plan.tokens.size())
    return corrupt("it has {} tokens and {} positions, at most {} are allowed", plan.tokens.size(),
                   plan.positions.size(), limits.max_rows);
  for (const PlannedSequence& sequence : plan.sequences) {
    const std::int64_t tokens = std::int64_t{sequence.context} + sequence.rows;
    if (sequence.rows < 1 || sequence.context < 0 || tokens > limits.max_context || sequence.first_row != rows ||
        rows + sequence.rows > static_cast<std::int64_t>(plan.tokens.size()) || sequence.first_block != blocks ||
        sequence.block_count != blocks_for(tokens, limits.block_tokens))
      return corrupt("it has a sequence of {} rows after {} tokens from row {} on, with {} blocks", sequence.rows,
                     sequence.context, sequence.first_row, sequence.block_count);
    ACCORD_RETURN_IF_ERROR(check_source(sequence, limits));
    if (sequence.adapter < 0 || static_cast<std::size_t>(sequence.adapter) > limits.adapters.size())
      return corrupt("it has a sequence with adapter {} of {}", sequence.adapter, limits.adapters.size());
    for (std::int32_t row = 0; row < sequence.rows; ++row) {
      if (plan.positions[static_cast<std::size_t>(rows + row)] != sequence.context + row)
        return corrupt("row {} is not at position {}", rows + row, sequence.context + row);
    }
    rows += sequence.rows;
    blocks += sequence.block_count + source_blocks(sequence, limits.block_tokens);
  }
  if (rows != static_cast<std::int64_t>(plan.tokens.size()) || blocks != static_cast<std::int64_t>(plan.blocks.size()))
    return corrupt("it has {} tokens and {} blocks, but its sequences have {} and {}", plan.tokens.size(),
                   plan.blocks.size(), rows, blocks);
  for (const TokenId token : plan.tokens)
    if (token < 0 || token >= limits.vocabulary)
      return corrupt("token {} is outside the vocabulary of {} tokens", token, limits.vocabulary);
  const auto known = [&](BlockId block) { return block >= 0 && block < limits.blocks; };
  for (const BlockId block : plan.blocks)
    if (!known(block)) return corrupt("block {} does not exist in a cache of {} blocks", block, limits.blocks);
  for (const BlockCopy& copy : plan.copies)
    if (!known(copy.from) || !known(copy.to) || copy.from == copy.to)
      return corrupt("it copies block {} to block {} in a cache of {} blocks", copy.from, copy.to, limits.blocks);
  std::int32_t last_sequence = -1;
  for (const NewSource& source : plan.sources) {
    const bool follows = source.sequence > last_sequence;
    if (!follows || static_cast<std::size_t>(source.sequence) >= plan.sequences.size() ||
        plan.sequences[static_cast<std::size_t>(source.sequence)].source_rows == 0 || source.tensors == nullptr)
      return corrupt("it has a source of sequence {}, which has none or another one", source.sequence);
    last_sequence = source.sequence;
  }
  std::int32_t last = -1;
  for (const std::int32_t row : plan.logit_rows) {
    if (row <= last || row >= rows)
      return corrupt("logits of row {} of {} are requested after those of row {}", row, rows, last);
    last = row;
  }
  return Status();
}

namespace {

// Bytes of a packed source.
std::size_t packed_bytes(const NewSource& source) {
  std::size_t bytes = 2 * sizeof(std::uint32_t);
  for (const SourceTensor& tensor : *source.tensors)
    bytes += 2 * sizeof(std::uint32_t) + tensor.shape.size() * sizeof(std::int64_t) + tensor.data.size();
  return bytes;
}

void write_source(const NewSource& source, Writer& writer) {
  const auto tensors = static_cast<std::uint32_t>(source.tensors->size());
  writer.write(&source.sequence, 1);
  writer.write(&tensors, 1);
  for (const SourceTensor& tensor : *source.tensors) {
    const std::uint32_t head[] = {static_cast<std::uint32_t>(tensor.dtype),
                                  static_cast<std::uint32_t>(tensor.shape.size())};
    writer.write(head, 2);
    writer.write(tensor.shape.data(), tensor.shape.size());
    writer.write(tensor.data.data(), tensor.data.size());
  }
}

}  // namespace

void pack(const StepPlan& plan, std::vector<std::byte>& bytes) {
  Header header;
  header.step = plan.step;
  header.block_tokens = static_cast<std::uint32_t>(plan.block_tokens);
  header.sequences = static_cast<std::uint32_t>(plan.sequences.size());
  header.blocks = static_cast<std::uint32_t>(plan.blocks.size());
  header.copies = static_cast<std::uint32_t>(plan.copies.size());
  header.logit_rows = static_cast<std::uint32_t>(plan.logit_rows.size());
  header.sources = static_cast<std::uint32_t>(plan.sources.size());
  std::size_t source_bytes = 0;
  for (const NewSource& source : plan.sources) source_bytes += packed_bytes(source);
  bytes.resize(source_bytes + sizeof(Header) + plan.sequences.size() * sizeof(PackedSequence) +
               plan.tokens.size() * sizeof(TokenId) + plan.blocks.size() * sizeof(BlockId) +
               plan.copies.size() * sizeof(BlockCopy) + plan.logit_rows.size() * sizeof(std::int32_t) +
               sizeof(std::uint64_t));
  Writer writer(bytes);
  writer.write(&header, 1);
  for (const PlannedSequence& sequence : plan.sequences) {
    const PackedSequence packed = {sequence.rows,        sequence.context,          sequence.source_rows,
                                   sequence.source_slot, sequence.first_source_row, sequence.adapter};
    writer.write(&packed, 1);
  }
  writer.write(plan.tokens.data(), plan.tokens.size());
  writer.write(plan.blocks.data(), plan.blocks.size());
  writer.write(plan.copies.data(), plan.copies.size());
  writer.write(plan.logit_rows.data(), plan.logit_rows.size());
  for (const NewSource& source : plan.sources) write_source(source, writer);
  const std::uint64_t hash = xxh3(std::span(bytes).first(bytes.size() - sizeof(std::uint64_t)));
  writer.write(&hash, 1);
}

Status unpack(std::span<const std::byte> bytes, const PlanLimits& limits, StepPlan& plan) {
  plan.clear();
  std::uint64_t hash = 0;
  if (bytes.size() < sizeof(Header) + sizeof(hash)) return corrupt("it has only {} bytes", bytes.size());
  const auto content = bytes.first(bytes.size() - sizeof(hash));
  std::memcpy(&hash, bytes.data() + content.size(), sizeof(hash));
  if (hash != xxh3(content)) return corrupt("its hash is wrong");
  Reader reader(content);
  Status status = read(reader, limits, plan);
  if (!status.ok()) plan.clear();
  return status;
}

}  // namespace accord::engine
