/* call_tool.c - calls methods of a gRPC server with an empty request, for tests of roles.
 *
 *     call_tool TARGET CERT KEY CA METHOD...     CERT, KEY, CA: "" for no TLS
 *
 * Prints for each method: its path, the status, and the status's text. */
#include <pthread.h>
#include <stdio.h>
#include "base/log.h"
#include "lib/lib.h"
#include "rpc/rpc.h"
#include "rpc/rpc_tls.h"

#define WITHIN_US 60000000

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static bool is_over;
static struct rpc_status status;

static void on_end(void *user, const struct rpc_status *s)
{
    (void)user;
    pthread_mutex_lock(&mu);
    status = *s;
    is_over = true;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&mu);
}

static void on_message(void *user, struct rpc_msg *msg)
{
    (void)user, (void)msg;
}

/* One empty message and the end of the client's side suit a unary call and a stream. */
static void call(struct rpc_client *c, const char *path)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    struct rpc_options opt = {.timeout_us = WITHIN_US, .wait_for_ready = true};
    is_over = false;
    struct rpc_stream *s = rpc_stream_new(c, path, &opt, &events, NULL);
    rpc_stream_send(s, rpc_msg_of("", 0));
    rpc_stream_close(s);
    pthread_mutex_lock(&mu);
    while (!is_over)
        pthread_cond_wait(&ended, &mu);
    pthread_mutex_unlock(&mu);
    rpc_stream_free(s);
    printf("%s %s %s\n", path, rpc_code_name(status.code), status.text);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    log_init("call_tool", LOG_LEVEL_WARN);
    struct rpc_tls tls = {argv[2], argv[3], argv[4]};
    if (*argv[2] && rpc_tls_init(&tls, NULL) < 0) {
        fprintf(stderr, "%s\n", fail_text());
        return 1;
    }
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    if (rpc_client_new(argv[1], NULL, &c) < 0)
        return 1;
    for (int i = 5; i < argc; i++)
        call(c, argv[i]);
    return 0;
}
