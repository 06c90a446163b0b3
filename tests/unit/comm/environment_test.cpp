// The variables of each launcher, as its documentation defines them.
#include "comm/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accord::comm {
namespace {

using ::testing::HasSubstr;

TEST(Environment, rank_and_world_size_set_by_hand_suffice) {
  const Result<JobPlace> place =
      job_place({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(place.ok()) << place.status().to_string();
  EXPECT_EQ(place->rank, 1);
  EXPECT_EQ(place->size, 4);
  EXPECT_EQ(place->address, "10.0.0.7");
  EXPECT_EQ(place->port, 1235) << "MASTER_PORT itself is torch.distributed's";
}

TEST(Environment, the_port_of_torchruns_store_is_avoided) {
  const Result<JobPlace> place = job_place({{"RANK", "0"},
                                            {"WORLD_SIZE", "2"},
                                            {"MASTER_ADDR", "localhost"},
                                            {"MASTER_PORT", "29500"},
                                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                            {"TORCHELASTIC_RUN_ID", "none"}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->port, 29501);
}

TEST(Environment, jobs_at_different_master_ports_have_different_names) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
  const std::string first = job_place(variables)->job;
  variables["MASTER_PORT"] = "29501";
  EXPECT_NE(job_place(variables)->job, first);
}

TEST(Environment, a_restarted_job_has_another_name) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
  const std::string first = job_place(variables)->job;
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(job_place(variables)->job, first);
}

TEST(Environment, the_launchers_store_belongs_to_the_job_that_it_names) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}};
  const std::string job = job_place(variables)->job;
  EXPECT_FALSE(job_place(variables)->has_host);
  variables["ACCORD_JOB_STORE"] = job;
  EXPECT_TRUE(job_place(variables)->has_host);
  variables["MASTER_PORT"] = "29600";  // another job, started by one of the ranks
  EXPECT_FALSE(job_place(variables)->has_host);
}

TEST(Environment, mpirun_on_one_host_needs_no_address) {
  const std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "2"},
                                                        {"OMPI_COMM_WORLD_SIZE", "3"},
                                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                                        {"PMIX_NAMESPACE", "271908865"}};
  const Result<JobPlace> place = job_place(variables);
  ASSERT_TRUE(place.ok()) << place.status().to_string();
  EXPECT_EQ(place->launcher, "Open MPI");
  EXPECT_EQ(place->rank, 2);
  EXPECT_GE(place->port, 1024);
  EXPECT_EQ(place->port, job_place(variables)->port) << "all ranks must use the same port";
}

TEST(Environment, the_error_for_mpirun_over_several_hosts_names_the_variable_to_set) {
  const Result<JobPlace> place = job_place({{"OMPI_COMM_WORLD_RANK", "0"},
                                            {"OMPI_COMM_WORLD_SIZE", "4"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"PMIX_NAMESPACE", "1"}});
  ASSERT_FALSE(place.ok());
  EXPECT_THAT(place.status().message(), HasSubstr("MASTER_ADDR"));
}

TEST(Environment, slurm_and_pmi_are_read) {
  EXPECT_EQ(job_place({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"MASTER_ADDR", "n1"}})->rank, 3);
  EXPECT_EQ(job_place({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "n1"}})->size, 2);
}

TEST(Environment, steps_of_one_slurm_job_have_their_own_names_and_ports) {
  std::map<std::string, std::string> variables = {{"SLURM_PROCID", "0"},
                                                  {"SLURM_NTASKS", "2"},
                                                  {"SLURM_NTASKS_PER_NODE", "2"},
                                                  {"SLURM_JOB_ID", "1234"},
                                                  {"SLURM_STEP_ID", "0"}};
  const JobPlace first = job_place(variables).value();
  variables["SLURM_STEP_ID"] = "1";
  const JobPlace second = job_place(variables).value();
  EXPECT_NE(first.job, second.job);
  EXPECT_NE(first.port, second.port);
}

TEST(Environment, a_pmi_job_connects_by_its_name_or_by_an_address) {
  std::map<std::string, std::string> variables = {
      {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "9"}, {"PMI_ID", "0"}};
  const Status nameless = job_place(variables).status();
  EXPECT_THAT(nameless.message(), HasSubstr("set MASTER_ADDR")) << "a descriptor and a rank do not name a job";
  variables["PMI_JOBID"] = "4711.0";
  const JobPlace named = job_place(variables).value();
  variables["PMI_RANK"] = variables["PMI_ID"] = "1";
  variables["PMI_FD"] = "10";
  EXPECT_EQ(job_place(variables)->port, named.port);
  EXPECT_EQ(job_place(variables)->job, named.job);
  variables.erase("PMI_JOBID");
  variables["MASTER_ADDR"] = "h";
  const JobPlace by_address = job_place(variables).value();
  variables["PMI_FD"] = "11";
  EXPECT_EQ(job_place(variables)->job, by_address.job);
}

TEST(Environment, without_a_launcher_the_group_has_one_rank) {
  const Result<JobPlace> place = job_place({{"PATH", "/bin"}});
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place->size, 1);
}

TEST(Environment, wrong_values_name_the_variable) {
  EXPECT_THAT(job_place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}}).status().message(),
              HasSubstr("set MASTER_ADDR"));
  EXPECT_THAT(job_place({{"RANK", "4"}, {"WORLD_SIZE", "4"}}).status().message(), HasSubstr("RANK=4"));
  EXPECT_THAT(job_place({{"RANK", "x"}, {"WORLD_SIZE", "4"}}).status().message(), HasSubstr("RANK"));
  EXPECT_THAT(job_place({{"RANK", "0"}}).status().message(), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(job_place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "99999"}})
                  .status()
                  .message(),
              HasSubstr("MASTER_PORT"));
}

}  // namespace
}  // namespace accord::comm
