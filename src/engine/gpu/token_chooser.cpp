#include "engine/gpu/token_chooser.hpp"

#include <algorithm>
#include <cstring>

#include "engine/gpu/kernels/token_kernel.hpp"

namespace accord::engine {
namespace {

Status allocate_once(device::Memory& memory, std::size_t bytes, const DeviceRun& run, std::string_view what) {
  if (memory.data() != nullptr) return Status();
  ACCORD_ASSIGN_OR_RETURN(memory, device::Memory::allocate(run.runtime, run.device, bytes, what));
  return Status();
}
Status allocate_with_staged(device::Memory& memory, device::Memory& staged, std::size_t bytes, const DeviceRun& run,
                            std::string_view what) {
  if (staged.data() == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(staged, device::Memory::allocate_host(run.runtime, run.device, bytes, what));
  }
  return allocate_once(memory, bytes, run, what);
}

template <DType kDType>
Status launch_choices(const DeviceRun& run, const TokenChoices& choices, int blocks) {
  const ChooseTokens<kDType> kernel{choices};
  const device::Grid grid{blocks, kernel.kThreads, kernel.shared_bytes()};
  return device::launch(run.runtime, kernel, grid, run.device, run.stream);
}
Status launch_choices(const DeviceRun& run, const TokenChoices& choices, DType dtype, int blocks) {
  switch (dtype) {
    case DType::kFloat16: return launch_choices<DType::kFloat16>(run, choices, blocks);
    case DType::kBFloat16: return launch_choices<DType::kBFloat16>(run, choices, blocks);
    default: return launch_choices<DType::kFloat32>(run, choices, blocks);
  }
}

std::size_t weights_bytes(std::size_t max_choices, std::int64_t width, int multiprocessors) {
  return std::min(max_choices, static_cast<std::size_t>(multiprocessors)) * static_cast<std::size_t>(width) *
         sizeof(std::uint32_t);
}

}  // namespace

std::size_t TokenChooser::bytes_for(std::int64_t width, int multiprocessors) const {
  return max_choices_ * (sizeof(TokenChoice) + sizeof(TokenId)) + weights_bytes(max_choices_, width, multiprocessors);
}

Status TokenChooser::choose(const DeviceRun& run, const Buffer& logits, std::int64_t width,
                            std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
  for (std::size_t at = 0; at < choices.size(); at += max_choices_) {
    const std::size_t batch = std::min(max_choices_, choices.size() - at);
    ACCORD_RETURN_IF_ERROR(choose_batch(run, logits, width, choices.subspan(at, batch), tokens.subspan(at, batch)));
  }
  return Status();
}

Status TokenChooser::choose_batch(const DeviceRun& run, const Buffer& logits, std::int64_t width,
                                  std::span<const TokenChoice> choices, std::span<TokenId> tokens) {
  const std::size_t blocks = std::min(choices.size(), static_cast<std::size_t>(run.multiprocessors));
  const bool draws = std::ranges::any_of(choices, [](const TokenChoice& choice) { return choice.temperature != 0; });
  ACCORD_RETURN_IF_ERROR(allocate_with_staged(choices_, staged_choices_, max_choices_ * sizeof(TokenChoice), run,
                                              "the choices of tokens"));
  ACCORD_RETURN_IF_ERROR(
      allocate_with_staged(tokens_, staged_tokens_, max_choices_ * sizeof(TokenId), run, "the chosen tokens"));
  if (draws) {
    const std::size_t bytes = weights_bytes(max_choices_, width, run.multiprocessors);
    ACCORD_RETURN_IF_ERROR(allocate_once(weights_, bytes, run, "the weights of tokens"));
  }
  std::memcpy(staged_choices_.data(), choices.data(), choices.size_bytes());
  ACCORD_RETURN_IF_ERROR(
      run.runtime.copy(choices_.data(), staged_choices_.data(), choices.size_bytes(), run.device, run.stream));
  TokenChoices kernel;
  kernel.logits = logits.data;
  kernel.width = width;
  kernel.count = static_cast<std::int64_t>(choices.size());
  kernel.choices = reinterpret_cast<const TokenChoice*>(choices_.data());
  kernel.weights = reinterpret_cast<std::uint32_t*>(weights_.data());
  kernel.tokens = reinterpret_cast<TokenId*>(tokens_.data());
  ACCORD_RETURN_IF_ERROR(launch_choices(run, kernel, logits.dtype, static_cast<int>(blocks)));
  ACCORD_RETURN_IF_ERROR(
      run.runtime.copy(staged_tokens_.data(), tokens_.data(), tokens.size_bytes(), run.device, run.stream));
  ACCORD_RETURN_IF_ERROR(run.runtime.synchronize(run.device, run.stream));
  std::memcpy(tokens.data(), staged_tokens_.data(), tokens.size_bytes());
  return Status();
}

}  // namespace accord::engine
