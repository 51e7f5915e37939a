/* /metrics of serve_text, in Prometheus's text format: slots, pages of the KV cache, requests, tokens, and how long
 * clients wait for the first token and between two. */
#ifndef TEXT_METRICS_H
#define TEXT_METRICS_H

#include "text_engine.h"

static void text_metric(FILE *to, const char *name, const char *type, const char *help, double value) {
    fprintf(to, "# HELP genie_text_%s %s\n# TYPE genie_text_%s %s\ngenie_text_%s %.17g\n", name, help, name, type, name,
            value);
}

static void text_metric_times(FILE *to, const char *name, const char *help, const engine_times *t) {
    int64_t all = 0;
    fprintf(to, "# HELP genie_text_%s %s\n# TYPE genie_text_%s histogram\n", name, help, name);
    for (int i = 0; i < ENGINE_BUCKETS; i++)
        fprintf(to, "genie_text_%s_bucket{le=\"%g\"} %lld\n", name, engine_bounds[i],
                (long long)(all += t->buckets[i]));
    fprintf(to, "genie_text_%s_bucket{le=\"+Inf\"} %lld\ngenie_text_%s_sum %.9g\ngenie_text_%s_count %lld\n", name,
            (long long)t->n, name, t->sum, name, (long long)t->n);
}

/* Pages are told apart by who has them, so that what is in use, kept for others and empty adds up to all. */
static void text_metric_pages(FILE *to, const gn_kv_pages_info *pages) {
    fprintf(to, "# HELP genie_text_kv_pages pages of the KV cache: of sequences now, kept to be shared, empty\n"
                "# TYPE genie_text_kv_pages gauge\n");
    fprintf(to, "genie_text_kv_pages{state=\"used\"} %lld\n", (long long)pages->used);
    fprintf(to, "genie_text_kv_pages{state=\"kept\"} %lld\n", (long long)pages->kept);
    fprintf(to, "genie_text_kv_pages{state=\"free\"} %lld\n", (long long)pages->free);
}

static void text_metrics(FILE *to, const engine *e) {
    gn_kv_pages_info pages = gn_kv_pages_get_info(e->pages.held);
    int64_t waiting = 0, busy = 0;
    for (const engine_request *r = e->first; r; r = r->next) waiting++;
    for (int64_t i = 0; i < e->slots; i++) busy += e->slot[i] != NULL;
    text_metric(to, "slots", "gauge", "sequences that can run at once", (double)e->slots);
    text_metric(to, "slots_in_use", "gauge", "sequences that run now", (double)busy);
    text_metric(to, "requests_waiting", "gauge", "requests that wait for a slot or for pages", (double)waiting);
    text_metric_pages(to, &pages);
    text_metric(to, "kv_pages_used_most", "gauge", "the most pages that sequences have had at once",
                (double)e->page_peak);
    text_metric(to, "kv_pages_copied_total", "counter", "shared pages copied before they were written",
                (double)pages.copied);
    text_metric(to, "kv_pages_evicted_total", "counter", "kept pages given up for others", (double)pages.evicted);
    text_metric(to, "steps_total", "counter", "steps of all slots", (double)e->steps);
    text_metric(to, "tokens_total", "counter", "tokens generated", (double)e->tokens);
    text_metric(to, "prompt_tokens_total", "counter", "tokens of prompts computed", (double)e->prompt_tokens);
    text_metric(to, "shared_tokens_total", "counter", "tokens of prompts found in pages that were there",
                (double)pages.reused);
    text_metric_times(to, "first_token_seconds", "from a request to its first token", &e->to_first);
    text_metric_times(to, "next_token_seconds", "from a token to the next of the same request", &e->between);
}

#endif
