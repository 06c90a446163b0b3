#pragma once
// Selects the backend that serves calls on devices, for tests of one backend.

namespace accord::testing {

/// Selection tables: kByNccl gives all calls on devices to NCCL; kByPlans gives plans all calls that they can serve.
inline constexpr const char* kByNccl =
    "broadcast[memory=cuda]:0-inf=nccl;all_gather[memory=cuda]:0-inf=nccl;reduce_scatter[memory=cuda]:0-inf=nccl;"
    "all_reduce[memory=cuda]:0-inf=nccl;reduce[memory=cuda]:0-inf=nccl;gather[memory=cuda]:0-inf=nccl;"
    "scatter[memory=cuda]:0-inf=nccl;all_to_all[memory=cuda]:0-inf=nccl";
inline constexpr const char* kByPlans =
    "broadcast[memory=cuda]:0-1k=packet,1k-inf=direct;all_gather[memory=cuda]:0-1k=packet,1k-inf=direct;"
    "reduce_scatter[memory=cuda]:0-1k=packet,1k-inf=direct;all_reduce[memory=cuda]:0-1k=packet,1k-inf=two_shot;"
    "reduce[memory=cuda]:0-1k=packet,1k-inf=direct;gather[memory=cuda]:0-1k=packet,1k-inf=direct;"
    "scatter[memory=cuda]:0-1k=packet,1k-inf=direct;all_to_all[memory=cuda]:0-1k=packet,1k-inf=direct";

}  // namespace accord::testing
