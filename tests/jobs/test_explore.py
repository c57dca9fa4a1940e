import time, json, shutil
from ..checkpoints import write_checkpoint, LLAMA
def show(name, done):
    print(f"\n=== {name}: {done.code} {done.stdout}\n{done.stderr}", end="")
def test_x(bench, tmp_path, model):
    p=bench.write_config()
    show("typo", bench.run("--set","sampling.temprature=1"))
    p.write_text(p.read_text().replace("temperature","temprature")); show("typo file", bench.command(p))
    show("missing config", bench.command(tmp_path/"nope.yaml"))
    show("missing data", bench.run("--data", str(tmp_path/"row.jsonl")))
    show("column", bench.run(prompt={"text":"{{ question }}"}))
    show("column+nomodel", bench.run(prompt={"text":"{{ question }}"}, model={"path":"/nope/x"}))
    show("syntax", bench.run(prompt={"text":"{{ q }}\n{% if %}"}))
    show("nomodel", bench.run(model={"path":str(tmp_path/"m")}))
    show("nomodel hub", bench.run(model={"path":"nobody-here/no-such-model"}))
    (tmp_path/"m1").mkdir(); show("empty dir", bench.run(model={"path":str(tmp_path/"m1")}))
    shutil.copytree(model, tmp_path/"m2"); (tmp_path/"m2/model.safetensors").rename(tmp_path/"m2/pytorch_model.bin"); show("no safet", bench.run(model={"path":str(tmp_path/"m2")}))
    shutil.copytree(model, tmp_path/"m3"); (tmp_path/"m3/config.json").write_text(json.dumps(LLAMA|{"model_type":"martian"})); show("martian", bench.run(model={"path":str(tmp_path/"m3")}))
    (tmp_path/"m3/config.json").write_text(json.dumps(LLAMA|{"hidden_size":32})); show("badshape", bench.run("--overwrite", model={"path":str(tmp_path/"m3")}))
    (tmp_path/"m3/config.json").write_text("{"); show("badjson", bench.run("--overwrite", model={"path":str(tmp_path/"m3")}))
    (tmp_path/"m3/config.json").write_text(json.dumps(LLAMA)); (tmp_path/"m3/tokenizer.json").unlink();show("notok", bench.run("--overwrite", model={"path":str(tmp_path/"m3")}))
    shutil.copytree(model, tmp_path/"m4"); (tmp_path/"m4/model.safetensors").write_bytes(b"junk"*100); show("junkweights", bench.run("--overwrite", model={"path":str(tmp_path/"m4")}))
    shutil.copytree(model, tmp_path/"m5"); (tmp_path/"m5/chat_template.jinja").unlink(); show("nochat", bench.run("--overwrite", model={"path":str(tmp_path/"m5")}, prompt={"user":"{{ q }}"}))
    (tmp_path/"stuff").mkdir(); (tmp_path/"stuff/x.txt").write_text("hi"); show("notrun", bench.run("--output", str(tmp_path/"stuff"))); print(list((tmp_path/"stuff").iterdir()))
    show("output a file", bench.run("--output", str(tmp_path/"stuff/x.txt")))
    show("adapter", bench.run("--overwrite", model={"path":str(model),"adapter":str(tmp_path/"stuff")}))
    show("onerror fail", bench.run("--overwrite", rows=[{"q":"a"},{"q":None},{"q":"c"}], on_error="fail"))
    d=bench.run("--overwrite", rows=[{"q":"a"},{"q":None},{"q":"c"}]); show("quarantined", d); print(d.errors)
    show("quarantined again", bench.run(rows=[{"q":"a"},{"q":None},{"q":"c"}]))
    d=bench.run("--overwrite", rows=[]); show("empty", d); print(d.table.schema.names, [x.name for x in d.output.iterdir()])
    show("empty again", bench.run(rows=[]))
    d=bench.run("--overwrite", rows=[{"q":""},{"q":" "}]); show("emptyprompt", d); print(d.records)
    long="many words "*200
    for pol in ("error","truncate_left","truncate_right"):
        d=bench.run("--overwrite", rows=[{"q":long},{"q":"x"*90}], prompt={"text":"{{ q }}","too_long":pol},sampling={"max_tokens":10,"temperature":0}); show(pol, d); 
        for r in d.records: print({k:v for k,v in r.items() if k!="input"})
        print(d.errors)
    d=bench.run("--overwrite","--data","-",stdin='{"q":"one"}\n{"q":"two"}\n'); show("stdin", d); print(len(d.records))
    show("q", bench.run("--overwrite","-q"))
    show("loglevel", bench.run("--overwrite","--log-level","DeBuG", model={"path":str(tmp_path/"m4")}))
    show("loglevel", bench.run("--overwrite","--log-level","loud"))
    d=bench.run("--overwrite", data={"path":str(tmp_path/"rows.jsonl"),"key":"id"}, rows=[{"q":"a","id":1},{"q":"b","id":1}]); show("dup",d)
    d=bench.run("--overwrite", data={"keep":["nope"]}); show("keep",d)
    d=bench.run("--overwrite", rows=[{"q":"a","t":0.5},{"q":"b","t":"x"},{"q":"b","t":-1}], sampling={"columns":{"temperature":"t"}}); show("columns",d); print(d.errors)
    d=bench.run("--overwrite", sampling={"columns":{"temperature":"tt"}}); show("columns",d); 
    d=bench.run("--overwrite", sampling={"stop_token_ids":[99999]}); show("ids",d); 
    d=bench.run("--overwrite", prompt={"user":"{{ q }}","chat_template":"{{ x "}); show("bad chat",d); 
    d=bench.run("--overwrite", prompt={"user":"{{ q }}","chat_template":"/nope/x.jinja"}); show("bad chat",d); 
    d=bench.run("--overwrite", prompt={"user":"{{ q }}","chat_template":"{{ raise_exception('no') }}"}); show("bad chat",d); print(d.errors)
    d=bench.run("--overwrite", batch={"memory":1e-6}); show("mem",d)
    d=bench.run("--overwrite", batch={"prefix_cache":"x"}); show("mem",d)
    d=bench.run("--set", "batch.rows=0","--set","sampling.n=x"); show("two",d)
