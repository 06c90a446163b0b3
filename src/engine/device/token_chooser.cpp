#include "engine/device/token_chooser.hpp"

#include <algorithm>

#include "engine/device/token_kernel.hpp"

namespace accord::engine {
namespace {

Status grow(DeviceMemory& memory, std::size_t bytes, const DeviceRun& run, std::string_view what) {
  if (bytes <= memory.size()) return Status();
  memory = DeviceMemory();
  ACCORD_ASSIGN_OR_RETURN(memory, DeviceMemory::allocate(run.runtime, run.device, bytes, what));
  return Status();
}

}  // namespace

Status TokenChooser::choose(const DeviceRun& run, const Buffer& logits, std::int64_t width,
                            std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
  if (choices.empty()) return Status();
  const std::size_t blocks = std::min(choices.size(), static_cast<std::size_t>(run.multiprocessors));
  const bool draws = std::ranges::any_of(choices, [](const TokenChoice& choice) { return choice.temperature != 0; });
  const std::size_t row = static_cast<std::size_t>(width) * sizeof(std::uint32_t);
  ACCORD_RETURN_IF_ERROR(grow(choices_, choices.size_bytes(), run, "the choices of tokens"));
  ACCORD_RETURN_IF_ERROR(grow(tokens_, tokens.size_bytes(), run, "the chosen tokens"));
  ACCORD_RETURN_IF_ERROR(grow(weights_, draws ? blocks * row : 0, run, "the weights of tokens"));
  ACCORD_RETURN_IF_ERROR(
      run.runtime.copy(choices_.data(), choices.data(), choices.size_bytes(), run.device, run.stream));
  ChooseTokens kernel;
  kernel.logits = logits.data;
  kernel.dtype = logits.dtype;
  kernel.width = width;
  kernel.count = static_cast<std::int64_t>(choices.size());
  kernel.choices = reinterpret_cast<const TokenChoice*>(choices_.data());
  kernel.weights = reinterpret_cast<std::uint32_t*>(weights_.data());
  kernel.tokens = reinterpret_cast<TokenId*>(tokens_.data());
  const device::Grid grid{static_cast<int>(blocks), ChooseTokens::kThreads, ChooseTokens::shared_bytes()};
  ACCORD_RETURN_IF_ERROR(device::launch(run.runtime, kernel, grid, run.device, run.stream));
  ACCORD_RETURN_IF_ERROR(run.runtime.copy(tokens.data(), tokens_.data(), tokens.size_bytes(), run.device, run.stream));
  return run.runtime.synchronize(run.device, run.stream);
}

}  // namespace accord::engine
