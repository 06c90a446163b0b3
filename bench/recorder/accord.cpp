// The overhead of the flight recorder in an operation, measured by itself: the steps that a call takes.
#include "base/config.hpp"
#include "bench/worker.hpp"
#include "flight/recorder.hpp"

namespace {

using namespace accord;
using flight::OrderRecorder;
using flight::Recorder;

constexpr exec::RequestRecord kRequest{
    .collective = Collective::kAllReduce, .dtype = DType::kFloat32, .op = ReduceOp::kSum, .count = 2};

std::string measure(Recorder& recorder, const bench::Command& command) {
  OrderRecorder order = recorder.collectives();
  std::uint64_t number = 0;
  constexpr int kAtOnce = 1000;  // so that the overhead of the loop is negligible
  const bool waits = command.collective == "waits";
  const double microseconds = bench::time_of(command.iterations / kAtOnce, [&] {
    for (int i = 0; i < kAtOnce; ++i) {
      order.begin(++number, kRequest, 8, 1);
      if (waits) order.waiting();
      order.end(true);
    }
  });
  return std::to_string(microseconds * 1000 / kAtOnce);
}

}  // namespace

int main(int, char** argv) {
  bench::pin_to_core(0);
  const Result<std::unique_ptr<Recorder>> recorder = Recorder::create(
      {.id = 1, .name = "bench", .rank = 0, .topology = topology::Topology::uniform(2)}, GroupHints().recorder_size);
  if (!recorder.ok()) return 1;
  return bench::serve(std::string(argv[1]) + ".0",
                      [&](const bench::Command& command) { return measure(**recorder, command); });
}
