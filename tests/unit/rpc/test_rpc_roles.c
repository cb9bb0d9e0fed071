/* test_rpc_roles.c - roles of names and sockets. What each role may call: test_roles.py. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_roles.h"

static unsigned role_of(const struct rpc_roles_map *map, const char *uri)
{
    return rpc_roles_of_uri(map, uri, strlen(uri));
}

static void a_uri_gives_the_role_that_it_states_exactly(void **state)
{
    (void)state;
    struct rpc_roles_map map;
    assert_int_equal(rpc_roles_read(NULL, &map), 0);
    assert_int_equal(role_of(&map, "tandem://client"), RPC_ROLE_CLIENT);
    assert_int_equal(role_of(&map, "tandem://gateway"), RPC_ROLE_GATEWAY);
    assert_int_equal(role_of(&map, "tandem://verifier"), RPC_ROLE_VERIFIER);
    assert_int_equal(role_of(&map, "tandem://proposer"), RPC_ROLE_PROPOSER);
    assert_int_equal(role_of(&map, "tandem://operator"), RPC_ROLE_OPERATOR);
    static const char *const others[] = {"",          "tandem://",          "tandem://operator/",
                                         "operator",  "tandem://Operator",  "https://operator",
                                         "tandem:",   "xtandem://operator", "tandem://operator ",
                                         "tandem://o"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_int_equal(role_of(&map, others[i]), 0);
    assert_int_equal(rpc_roles_of_uri(&map, "tandem://operator\0.example", 26), 0);
}

static void a_dns_name_or_cn_gives_only_the_roles_of_tls_roles(void **state)
{
    (void)state;
    struct rpc_roles_map map;
    struct conf_list list = {.n = 1, .v = {"g1=gateway"}};
    assert_int_equal(rpc_roles_read(&list, &map), 0);
    assert_int_equal(rpc_roles_of_name(&map, "tandem://operator", 17), 0);
    assert_int_equal(rpc_roles_of_name(&map, "g1", 2), RPC_ROLE_GATEWAY);
}

static void tls_roles_adds_roles_to_names(void **state)
{
    (void)state;
    struct rpc_roles_map map;
    struct conf_list list = {.n = 3, .v = {"g1=gateway", "g1=operator", "urn:x?a=b=verifier"}};
    assert_int_equal(rpc_roles_read(&list, &map), 0);
    assert_int_equal(role_of(&map, "g1"), RPC_ROLE_GATEWAY | RPC_ROLE_OPERATOR);
    assert_int_equal(role_of(&map, "urn:x?a=b"), RPC_ROLE_VERIFIER);
    assert_int_equal(role_of(&map, "g"), 0);
    assert_int_equal(role_of(&map, "g12"), 0);
    char text[RPC_ROLES_TEXT_MAX];
    assert_string_equal(rpc_roles_text(role_of(&map, "g1"), text), "gateway or operator");
    assert_string_equal(rpc_roles_text(0, text), "none");
    assert_string_equal(rpc_roles_text(31, text),
                        "client or gateway or verifier or proposer or operator");
    static const char *const bad[] = {"g1", "=gateway", "g1=", "g1=gate", "g1=gateways"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        list = (struct conf_list){.n = 1, .v = {(char *)(uintptr_t)bad[i]}};
        assert_int_equal(rpc_roles_read(&list, &map), -EINVAL);
        assert_non_null(strstr(fail_text(), bad[i]));
    }
}

/* Connects as this user, in a separate process. */
static pid_t connect_as(uid_t user, const struct sockaddr_un *a)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    bool ok = setuid(user) == 0 && connect(fd, (const struct sockaddr *)a, sizeof(*a)) == 0;
    _exit(ok ? 0 : 1);
}

/* An abstract address, for which files' permissions do not matter. */
static bool own_user_is(uid_t user)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "tandem-test-roles-%d", (int)getpid());
    int s = socket(AF_UNIX, SOCK_STREAM, 0), status;
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(s, 1), 0);
    pid_t pid = connect_as(user, &a);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    int fd = accept(s, NULL, NULL);
    bool own = rpc_roles_is_own_user(fd);
    close(fd);
    close(s);
    return own;
}

static void the_own_user_is_told_from_others(void **state)
{
    (void)state;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_false(rpc_roles_is_own_user(fd)); // TCP has no user
    close(fd);
    assert_true(own_user_is(geteuid()));
    if (geteuid() != 0)
        lib_skip("only root can become another user");
    assert_false(own_user_is(12345));
    assert_false(own_user_is(65534));
}

static void only_a_unix_socket_may_be_for_operators(void **state)
{
    (void)state;
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *s = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen_admin(s, "127.0.0.1:0"), -EINVAL);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(rpc_server_listen_fd(s, fd, true), -EINVAL);
    close(fd);
    rpc_server_stop(s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uri_gives_the_role_that_it_states_exactly),
        cmocka_unit_test(a_dns_name_or_cn_gives_only_the_roles_of_tls_roles),
        cmocka_unit_test(tls_roles_adds_roles_to_names),
        cmocka_unit_test(the_own_user_is_told_from_others),
        cmocka_unit_test(only_a_unix_socket_may_be_for_operators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
