#include "conformance/comm/device_suite.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <span>

#include "unit/kernels/reduce_reference.hpp"

namespace accord::testing {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kParts[] = {0, 1, 7, 1003};  // elements per rank
constexpr DType kFewDTypes[] = {DType::kInt32, DType::kBFloat16, DType::kFloat32};

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.to_string(); }

template <typename Enum>
std::vector<Enum> all(int count) {
  std::vector<Enum> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<Enum>(i));
  return values;
}

/// Small integers, different for each rank and position, on which every op is exact: factors of 1 or 2 for
/// products, multiples of the number of ranks for averages.
int whole_number(ReduceOp op, int rank, int size, std::size_t i) {
  const int mixed = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3 + i / 5) % 4);
  if (op == ReduceOp::kProduct) return 1 + mixed % 2;
  return op == ReduceOp::kAvg ? mixed * size : mixed;
}

double factor_of(int rank) { return rank % 2 == 0 ? 2.0 : 3.0; }

Bytes inputs_of(DType dtype, ReduceOp op, int rank, int size, std::size_t count) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const int number = whole_number(op, rank, size, i);
    if (dtype == DType::kBool) {
      bytes[i] = static_cast<std::byte>(number % 2);
      continue;
    }
    kernels::with_reference(dtype, [&](const auto& reference) {
      using Value = typename std::decay_t<decltype(reference)>::Value;
      const auto bits = reference.encode(static_cast<Value>(static_cast<float>(number)));
      std::memcpy(&bytes[i * sizeof(bits)], &bits, sizeof(bits));
    });
  }
  return bytes;
}

bool truth(ReduceOp op, const std::vector<Bytes>& inputs, std::size_t i) {
  const auto count =
      std::count_if(inputs.begin(), inputs.end(), [i](const Bytes& one) { return one[i] != std::byte{0}; });
  if (op == ReduceOp::kBxor) return count % 2 == 1;
  const bool takes_any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor;
  return takes_any ? count > 0 : count == static_cast<std::ptrdiff_t>(inputs.size());
}

Bytes reduced(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  Bytes result(inputs[0].size());
  std::vector<std::complex<double>> factors;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) factors.push_back(factor_of(static_cast<int>(rank)));
  if (dtype == DType::kBool) {
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<std::byte>(truth(op, inputs, i));
    return result;
  }
  kernels::with_reference(dtype, [&](const auto& reference) {
    using Bits = typename std::decay_t<decltype(reference)>::Bits;
    for (std::size_t at = 0; at < result.size(); at += sizeof(Bits)) {
      std::vector<Bits> column(inputs.size());
      for (std::size_t rank = 0; rank < inputs.size(); ++rank)
        std::memcpy(&column[rank], &inputs[rank][at], sizeof(Bits));
      const Bits value = reference.reduce(op, column, factors);
      std::memcpy(&result[at], &value, sizeof(Bits));
    }
  });
  return result;
}

Bytes slice(const Bytes& bytes, std::size_t first, std::size_t count) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// Bytes that differ by rank and by position.
Bytes pattern(int rank, std::size_t bytes, std::size_t first = 0) {
  Bytes values(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    values[i] = static_cast<std::byte>((first + i) * 31 + static_cast<std::size_t>(rank) * 17 + (first + i) / 256);
  return values;
}

void append(Bytes& to, const Bytes& more) { to.insert(to.end(), more.begin(), more.end()); }

/// Returns false if the backend lacks the reduction.
bool check_reduction(Communicator& comm, const OnDevice& on, DType dtype, ReduceOp op, std::size_t part) {
  const int size = comm.size();
  const std::size_t count = part * static_cast<std::size_t>(size);
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(inputs_of(dtype, op, rank, size, count));
  const Bytes expected = reduced(dtype, op, inputs), mine = inputs[static_cast<std::size_t>(comm.rank())];
  const Reduction how = op == ReduceOp::kPremulSum ? Reduction::premul_sum(factor_of(comm.rank())) : Reduction(op);
  const CallOptions options{.stream = on.stream};

  const DeviceArray input(on, mine, dtype), output(on, Bytes(mine.size()), dtype);
  const Status first = comm.all_reduce(input.buffer(), output.buffer(), how, options);
  if (first.code() == StatusCode::kUnsupported) {
    EXPECT_THAT(first.message(), HasSubstr(std::string(to_string(op)) + " of " + std::string(to_string(dtype))));
    return false;
  }
  expect_ok(first);
  EXPECT_EQ(output.bytes(), expected) << "all_reduce";
  EXPECT_EQ(input.bytes(), mine) << "the input was written";
  expect_ok(comm.all_reduce(input.buffer(), how, options));
  EXPECT_EQ(input.bytes(), expected) << "all_reduce in place";

  const Rank root = size - 1;
  input.put(mine);
  output.put(Bytes(mine.size()));
  expect_ok(comm.reduce(input.buffer(), output.buffer(), how, root, options));
  EXPECT_EQ(output.bytes(), comm.rank() == root ? expected : Bytes(mine.size())) << "reduce";

  const std::size_t part_bytes = part * size_of(dtype), begin = part_bytes * static_cast<std::size_t>(comm.rank());
  const DeviceArray own(on, Bytes(part_bytes), dtype);
  expect_ok(comm.reduce_scatter(input.buffer(), own.buffer(), how, options));
  EXPECT_EQ(own.bytes(), slice(expected, begin, part_bytes)) << "reduce_scatter";
  return true;
}

void check_unequal_reduce_scatter(Communicator& comm, const OnDevice& on) {
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < comm.size(); ++rank) counts.push_back(rank == 1 ? 0 : 5 + static_cast<std::size_t>(rank));
  const std::size_t count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::size_t{0});
  std::vector<Bytes> inputs;
  for (int rank = 0; rank < comm.size(); ++rank)
    inputs.push_back(inputs_of(DType::kFloat32, ReduceOp::kSum, rank, comm.size(), count));
  const std::size_t own = counts[static_cast<std::size_t>(comm.rank())];
  const DeviceArray input(on, inputs[static_cast<std::size_t>(comm.rank())], DType::kFloat32),
      output(on, Bytes(own * 4), DType::kFloat32);
  expect_ok(comm.reduce_scatter_v(input.buffer(), output.buffer(), counts, ReduceOp::kSum, {.stream = on.stream}));
  EXPECT_EQ(output.bytes(), slice(reduced(DType::kFloat32, ReduceOp::kSum, inputs), before * 4, own * 4));
}

/// Checks the calls with `counts[r]` elements of each rank r. `equal`: by the variants that take no counts.
void check_parts(Communicator& comm, const OnDevice& on, DType dtype, const std::vector<std::size_t>& counts,
                 bool equal) {
  const CallOptions options{.stream = on.stream};
  const std::size_t element = size_of(dtype), own = counts[static_cast<std::size_t>(comm.rank())];
  Bytes whole;
  for (int rank = 0; rank < comm.size(); ++rank)
    append(whole, pattern(rank, counts[static_cast<std::size_t>(rank)] * element));
  const std::size_t before = std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::size_t{0});
  const Bytes mine = pattern(comm.rank(), own * element);
  const DeviceArray input(on, mine, dtype), output(on, Bytes(whole.size()), dtype);

  expect_ok(equal ? comm.all_gather(input.buffer(), output.buffer(), options)
                  : comm.all_gather_v(input.buffer(), output.buffer(), counts, options));
  EXPECT_EQ(output.bytes(), whole) << "all_gather";
  Bytes in_place(whole.size());
  std::copy(mine.begin(), mine.end(), in_place.begin() + static_cast<std::ptrdiff_t>(before * element));
  output.put(in_place);
  const Buffer part = output.part(before, own);
  expect_ok(equal ? comm.all_gather(part, output.buffer(), options)
                  : comm.all_gather_v(part, output.buffer(), counts, options));
  EXPECT_EQ(output.bytes(), whole) << "all_gather in place";

  for (Rank root = 0; root < comm.size(); ++root) {
    const bool is_root = comm.rank() == root;
    output.put(Bytes(whole.size()));
    const Buffer to = is_root ? output.buffer() : Buffer{};
    expect_ok(equal ? comm.gather(input.buffer(), to, root, options)
                    : comm.gather_v(input.buffer(), to, counts, root, options));
    EXPECT_EQ(output.bytes(), is_root ? whole : Bytes(whole.size())) << "gather";
    if (is_root) {
      output.put(in_place);
    }
    const ConstBuffer from = is_root ? ConstBuffer(part) : ConstBuffer(input.buffer());
    expect_ok(equal ? comm.gather(from, to, root, options) : comm.gather_v(from, to, counts, root, options));
    EXPECT_EQ(output.bytes(), is_root ? whole : Bytes(whole.size())) << "gather in place";

    const DeviceArray scattered(on, Bytes(own * element), dtype);
    expect_ok(equal ? comm.scatter(ConstBuffer(to), scattered.buffer(), root, options)
                    : comm.scatter_v(ConstBuffer(to), scattered.buffer(), counts, root, options));
    EXPECT_EQ(scattered.bytes(), mine) << "scatter";
  }
}

void check_all_to_all(Communicator& comm, const OnDevice& on, DType dtype, std::size_t part) {
  const std::size_t bytes = part * size_of(dtype), size = static_cast<std::size_t>(comm.size());
  const CallOptions options{.stream = on.stream};
  const Bytes mine = pattern(comm.rank(), bytes * size);
  Bytes expected;
  for (int rank = 0; rank < comm.size(); ++rank)
    append(expected, pattern(rank, bytes, bytes * static_cast<std::size_t>(comm.rank())));
  const DeviceArray input(on, mine, dtype), output(on, Bytes(mine.size()), dtype);
  expect_ok(comm.all_to_all(input.buffer(), output.buffer(), options));
  EXPECT_EQ(output.bytes(), expected) << "all_to_all";
  expect_ok(comm.all_to_all(input.buffer(), input.buffer(), options));
  EXPECT_EQ(input.bytes(), expected) << "all_to_all in place";
}

/// Rank r sends r + p elements to rank p.
void check_all_to_all_v(Communicator& comm, const OnDevice& on) {
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<std::size_t> counts;
  Bytes mine, expected;
  for (std::size_t peer = 0; peer < static_cast<std::size_t>(comm.size()); ++peer) {
    counts.push_back(me + peer);
    append(mine, pattern(comm.rank(), 2 * (me + peer), 100 * peer));
    append(expected, pattern(static_cast<int>(peer), 2 * (me + peer), 100 * me));
  }
  const DeviceArray input(on, mine, DType::kInt16), output(on, Bytes(expected.size()), DType::kInt16);
  expect_ok(comm.all_to_all_v(input.buffer(), counts, output.buffer(), counts, {.stream = on.stream}));
  EXPECT_EQ(output.bytes(), expected);
}

int check_reductions(Communicator& comm, const OnDevice& on, std::span<const DType> dtypes) {
  int known = 0;
  for (const DType dtype : dtypes)
    for (const ReduceOp op : all<ReduceOp>(kReduceOpCount)) {
      if (!is_defined(op, dtype)) continue;
      bool has = true;
      for (const std::size_t part : kParts) {
        SCOPED_TRACE(::testing::Message() << to_string(op) << " of " << part << " x " << to_string(dtype));
        has = check_reduction(comm, on, dtype, op, part);
        if (!has) break;
      }
      known += has ? 1 : 0;
    }
  check_unequal_reduce_scatter(comm, on);
  return known;
}

void check_data_movement(Communicator& comm, const OnDevice& on, std::span<const DType> dtypes) {
  for (const DType dtype : dtypes)
    for (const std::size_t part : kParts) {
      SCOPED_TRACE(::testing::Message() << part << " x " << to_string(dtype));
      for (Rank root = 0; root < comm.size(); ++root) {
        const DeviceArray values(on, pattern(comm.rank(), part * size_of(dtype)), dtype);
        expect_ok(comm.broadcast(values.buffer(), root, {.stream = on.stream}));
        EXPECT_EQ(values.bytes(), pattern(root, part * size_of(dtype))) << "broadcast";
      }
      check_parts(comm, on, dtype, std::vector<std::size_t>(static_cast<std::size_t>(comm.size()), part), true);
      check_all_to_all(comm, on, dtype, part);
    }
  std::vector<std::size_t> counts;
  for (int rank = 0; rank < comm.size(); ++rank)
    counts.push_back(rank == 0 ? 0 : 1 + 100 * static_cast<std::size_t>(rank));
  check_parts(comm, on, DType::kBFloat16, counts, false);
  check_all_to_all_v(comm, on);
}

}  // namespace

int check_device_reductions(Communicator& comm, const OnDevice& on) {
  return check_reductions(comm, on, all<DType>(kDTypeCount));
}
int check_device_reductions_of_few_dtypes(Communicator& comm, const OnDevice& on) {
  return check_reductions(comm, on, kFewDTypes);
}

void check_device_data_movement(Communicator& comm, const OnDevice& on) {
  check_data_movement(comm, on, all<DType>(kDTypeCount));
}
void check_device_data_movement_of_few_dtypes(Communicator& comm, const OnDevice& on) {
  check_data_movement(comm, on, kFewDTypes);
}

void check_device_messages(Communicator& comm, const OnDevice& on) {
  const CallOptions options{.stream = on.stream};
  const int size = comm.size();
  if (size == 1) return;
  const Rank next = (comm.rank() + 1) % size, previous = (comm.rank() + size - 1) % size;
  for (const std::size_t count : {0, 1, 5003}) {
    const DeviceArray out(on, pattern(comm.rank(), count), DType::kUInt8), in(on, Bytes(count), DType::kUInt8);
    const Call calls[] = {Call::recv(in.buffer(), previous), Call::send(out.buffer(), next)};
    expect_ok(comm.run(calls, options));
    EXPECT_EQ(in.bytes(), pattern(previous, count)) << "at once";
    // In separate calls, each waits in its stream for the other rank, so one of the ranks must send first.
    in.put(Bytes(count));
    if (comm.rank() == 0) expect_ok(comm.send(out.buffer(), next, 7, options));
    expect_ok(comm.recv(in.buffer(), previous, 7, options));
    if (comm.rank() != 0) expect_ok(comm.send(out.buffer(), next, 7, options));
    EXPECT_EQ(in.bytes(), pattern(previous, count)) << "one by one";
  }
  // Two messages in each direction between each pair of ranks; odd ranks list their peers in the opposite order.
  std::vector<std::unique_ptr<DeviceArray>> outs, ins;
  std::vector<Call> calls;
  for (int i = 0; i < 2 * size; ++i) {
    const Rank peer = comm.rank() % 2 == 0 ? i % size : size - 1 - i % size;
    if (peer == comm.rank()) continue;
    outs.push_back(std::make_unique<DeviceArray>(on, pattern(comm.rank() + 10 * (i / size), 333), DType::kUInt8));
    ins.push_back(std::make_unique<DeviceArray>(on, Bytes(333), DType::kUInt8));
    calls.push_back(Call::send(outs.back()->buffer(), peer));
    calls.push_back(Call::recv(ins.back()->buffer(), peer));
  }
  expect_ok(comm.run(calls, options));
  for (std::size_t i = 0; i < ins.size(); ++i) {
    const Rank peer = calls[2 * i].peer;
    const bool is_second = i >= ins.size() / 2;
    EXPECT_EQ(ins[i]->bytes(), pattern(peer + (is_second ? 10 : 0), 333)) << "from rank " << peer;
  }
}

void check_device_works(Communicator& comm, const OnDevice& on) {
  const CallOptions options{.stream = on.stream};
  constexpr std::size_t kCount = 4001;
  const int size = comm.size();
  const DeviceArray values(on, std::vector<float>(kCount), DType::kFloat32),
      copy(on, std::vector<float>(kCount), DType::kFloat32);
  const std::vector<float> ones(kCount, 1.0F);
  for (int round = 0; round < 20; ++round) {
    // The work before the call in the stream, the call itself, and the work after it, without a wait on the host.
    ASSERT_TRUE(on.runtime.copy(values.buffer().data, ones.data(), values.buffer().bytes(), on.device, on.stream).ok());
    Work work = comm.start(Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum), options);
    expect_ok(work.block(on.stream));
    ASSERT_TRUE(
        on.runtime.copy(copy.buffer().data, values.buffer().data, values.buffer().bytes(), on.device, on.stream).ok());
    if (round % 2 == 0) expect_ok(work.wait());
    EXPECT_EQ(copy.values<float>(), std::vector<float>(kCount, static_cast<float>(size)));
    expect_ok(work.wait());
    EXPECT_TRUE(work.test());
  }
  // Several works in flight, which end in order, each with a callback.
  std::vector<Work> works;
  std::atomic<int> called = 0;
  values.put(std::vector<std::byte>(values.buffer().bytes()));
  for (int round = 0; round < 50; ++round) {
    works.push_back(comm.start(Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kMax), options));
    works.back().on_end([&called](const Status& status) { called += status.ok() ? 1 : 1000; });
  }
  for (Work& work : works) expect_ok(work.wait());
  while (called < 50) std::this_thread::yield();
  EXPECT_EQ(called, 50);
}

void check_device_prepared(Communicator& comm, const OnDevice& on) {
  const int size = comm.size();
  std::vector<std::size_t> counts(static_cast<std::size_t>(size), 3);
  double factor = 2.0;
  const DeviceArray values(on, std::vector<double>(8, 1.0), DType::kFloat64), part(on, Bytes(3), DType::kUInt8),
      whole(on, Bytes(3 * counts.size()), DType::kUInt8);
  Result<Prepared> prepared = [&] {
    const Call calls[] = {Call::all_reduce(values.buffer(), values.buffer(),
                                           Reduction::premul_sum(ConstBuffer(&factor, 1, DType::kFloat64))),
                          Call::all_gather_v(part.buffer(), whole.buffer(), counts)};
    return comm.prepare(calls, {.stream = on.stream});
  }();
  ASSERT_TRUE(prepared.ok()) << prepared.status().to_string();
  factor = -100;  // prepare() has already read it, and the counts
  counts.assign(counts.size(), 77);
  double expected = 1.0;
  for (int round = 0; round < 5; ++round) {
    part.put(pattern(comm.rank(), 3, static_cast<std::size_t>(round)));
    if (round % 2 == 0) {
      expect_ok(prepared->run());
    } else {
      expect_ok(prepared->start().wait());
    }
    expected *= 2.0 * size;
    Bytes all_parts;
    for (int rank = 0; rank < size; ++rank) append(all_parts, pattern(rank, 3, static_cast<std::size_t>(round)));
    EXPECT_EQ(values.values<double>(), std::vector<double>(8, expected));
    EXPECT_EQ(whole.bytes(), all_parts);
  }
}

void check_invalid_device_calls(Communicator& comm, const OnDevice& on) {
  const DeviceArray values(on, std::vector<float>(4), DType::kFloat32);
  std::vector<float> host(4);
  const Buffer on_host{host.data(), 4, DType::kFloat32};
  const auto message = [&](const Call& call) { return comm.run(call).to_string(); };
  EXPECT_THAT(message(Call::all_reduce(on_host, values.buffer(), ReduceOp::kSum)),
              HasSubstr("input is on cpu, output is on cuda:"));
  Buffer beyond = values.buffer();
  beyond.device.index = 1000;
  EXPECT_THAT(message(Call::broadcast(beyond, 0)), HasSubstr("cuda:1000"));
  Buffer unknown = values.buffer();
  unknown.device.type = static_cast<DeviceType>(9);
  EXPECT_THAT(message(Call::broadcast(unknown, 0)), HasSubstr("device type 9 does not exist"));
  const Call both[] = {Call::broadcast(values.buffer(), 0), Call::broadcast(on_host, 0)};
  EXPECT_THAT(comm.run(both).to_string(), HasSubstr("calls on a GPU and on the CPU cannot begin together"));
  EXPECT_THAT(comm.start(both).wait().to_string(), HasSubstr("cannot begin together"));
  EXPECT_EQ(comm.state(), CommunicatorState::kReady);
  expect_ok(comm.broadcast(values.buffer(), 0, {.stream = on.stream}));
  on.synchronize();
}

}  // namespace accord::testing
