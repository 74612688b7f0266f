{{- define "sessile.fullname" -}}
{{- if contains "sessile" .Release.Name }}{{ .Release.Name | trunc 30 | trimSuffix "-" }}{{ else }}{{ printf "%s-sessile" (.Release.Name | trunc 22 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "sessile.selector" -}}
app.kubernetes.io/name: sessile
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sessile.labels" -}}
{{ include "sessile.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Of a pool: dict "root" $ "pool" NAME. */}}
{{- define "sessile.poolName" -}}
{{ include "sessile.fullname" .root }}-{{ .pool }}
{{- end }}

{{- define "sessile.poolSelector" -}}
{{ include "sessile.selector" .root }}
app.kubernetes.io/component: replica
sessile/pool: {{ .pool }}
{{- end }}

{{- define "sessile.image" -}}
{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}-{{ .variant }}
{{- end }}

{{/* A setting's value as the process reads it: whole numbers stay whole. */}}
{{- define "sessile.setting" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{/* dict "under" "over": one map over another, as JSON. `mergeOverwrite` takes no false, zero or empty text over. */}}
{{- define "sessile.merge" -}}
{{- $merged := deepCopy .under }}
{{- range $key, $value := .over }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $merged $key)) }}
{{- $_ := set $merged $key (include "sessile.merge" (dict "under" (get $merged $key) "over" $value) | fromJson) }}
{{- else }}
{{- $_ := set $merged $key $value }}
{{- end }}
{{- end }}
{{- toJson $merged }}
{{- end }}

{{/* All pools, whole, as JSON. */}}
{{- define "sessile.pools" -}}
{{- $pools := dict }}
{{- range $name, $pool := .Values.pools }}
{{- $_ := set $pools $name (include "sessile.merge" (dict "under" $.Values.poolDefaults "over" $pool) | fromJson) }}
{{- end }}
{{- toJson $pools }}
{{- end }}

{{/* What is wrong with the values as a whole; each alone is the schema's. */}}
{{- define "sessile.check" -}}
{{- $peers := .Values.peers }}
{{- if and (not $peers.tlsSecret) (not $peers.insecure) }}
{{- fail "peers: name a Secret with certificates (peers.tlsSecret), or, where the network below encrypts already, set peers.insecure to true." }}
{{- end }}
{{- if and $peers.tlsSecret (not $peers.serverName) }}
{{- fail "peers.serverName: name the host that the certificate in peers.tlsSecret is made out to; replicas are reached by their pods' addresses." }}
{{- end }}
{{- if and $peers.tlsSecret $peers.insecure }}
{{- fail "peers: give one of tlsSecret and insecure, not both." }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name the Gateway that the route belongs to." }}
{{- end }}
{{- range $name, $pool := include "sessile.pools" . | fromJson }}
{{- with $pool.autoscaling }}
{{- if and .enabled (not $.Values.monitoring.prometheusUrl) }}
{{- fail (printf "pools.%s.autoscaling: name the Prometheus that it reads, with monitoring.prometheusUrl." $name) }}
{{- end }}
{{- if and .enabled (gt (int .min) (int .max)) }}
{{- fail (printf "pools.%s.autoscaling: min is %d and max is %d; min must not be above max." $name (int .min) (int .max)) }}
{{- end }}
{{- end }}
{{- if and (gt (int $pool.multiNode.size) 1) (ne $pool.engine "vllm") }}
{{- fail (printf "pools.%s.multiNode.size: only vLLM spreads a model over machines; set engine to vllm, or size to 1." $name) }}
{{- end }}
{{- if and (eq $pool.engine "vllm") (ne $pool.variant "cuda") }}
{{- fail (printf "pools.%s.variant: vLLM is in the image's variant cuda." $name) }}
{{- end }}
{{- if and (hasPrefix "/models/" $pool.model) (not $pool.modelVolume) }}
{{- fail (printf "pools.%s.modelVolume: name the PersistentVolumeClaim that has %s." $name $pool.model) }}
{{- end }}
{{- if gt (mulf (int $pool.kv.diskMb) 1.0) (mulf (include "sessile.megabytes" $pool.kv.volumeSize | int) 0.9) }}
{{- fail (printf "pools.%s.kv: diskMb is %d, which does not fit into nine tenths of volumeSize (%s)." $name (int $pool.kv.diskMb) $pool.kv.volumeSize) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity as decimal megabytes. */}}
{{- define "sessile.megabytes" -}}
{{- $number := regexFind "^[0-9]+" . | int }}
{{- $units := dict "Mi" 1.048576 "Gi" 1073.741824 "Ti" 1099511.627776 "M" 1.0 "G" 1000.0 "T" 1000000.0 }}
{{- mulf $number (get $units (regexFind "[A-Za-z]+$" .)) | floor | int }}
{{- end }}

{{/* What gateways and replicas have in common. */}}
{{- define "sessile.env" -}}
- name: SESSILE_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: SESSILE_METRICS_HOST
  value: {{ ternary "::" "0.0.0.0" .Values.ipv6 | quote }}
- name: SESSILE_METRICS_PORT
  value: "9464"
- name: SESSILE_LOG_FORMAT
  value: json
{{- $files := dict "directory" "DIRECTORY_FILE" "journal" "JOURNAL_FILE" "peerToken" "PEER_TOKEN_FILE" "masterKey" "MASTER_KEY" "auditKey" "AUDIT_KEY" "apiKeys" "KEYS" "keyServiceToken" "KEY_SERVICE_TOKEN_FILE" "oidcClientSecret" "OIDC_CLIENT_SECRET_FILE" "kvRedis" "KV_REDIS_FILE" "usageStream" "USAGE_STREAM_FILE" "otlp" "OTLP_FILE" }}
{{- range $name, $variable := $files }}
{{- if get $.Values.secret.keys $name }}
- name: SESSILE_{{ $variable }}
  value: /run/sessile/{{ $name }}
{{- end }}
{{- end }}
{{- if .Values.peers.tlsSecret }}
- name: SESSILE_PEER_AUTHORITY
  value: /run/sessile-peers/ca.crt
- name: SESSILE_PEER_CERTIFICATE
  value: /run/sessile-peers/tls.crt
- name: SESSILE_PEER_KEY
  value: /run/sessile-peers/tls.key
- name: SESSILE_PEER_SERVER_NAME
  value: {{ .Values.peers.serverName | quote }}
{{- else }}
- name: SESSILE_PEER_INSECURE
  value: "true"
{{- end }}
{{- end }}

{{/* Secrets lie in memory, readable for the process alone: a mounted Secret is readable for its group, and refused. */}}
{{- define "sessile.secretsContainer" -}}
- name: secrets
  image: {{ .image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: ["/bin/sh", "-c", "cd /run/given && for file in *; do install -m 0400 \"$file\" \"/run/sessile/$file\" || exit 1; done"]
  securityContext: {{- include "sessile.containerSecurity" . | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: given, mountPath: /run/given, readOnly: true}
    - {name: secrets, mountPath: /run/sessile}
{{- end }}

{{- define "sessile.mounts" -}}
- {name: secrets, mountPath: /run/sessile, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.peers.tlsSecret }}
- {name: peers, mountPath: /run/sessile-peers, readOnly: true}
{{- end }}
{{- if .files }}
- {name: files, mountPath: /etc/sessile, readOnly: true}
{{- end }}
{{- end }}

{{- define "sessile.volumes" -}}
- name: given
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .root.Values.secret.name }}
          items:
            {{- range $name, $key := .root.Values.secret.keys }}
            {{- if and $key (ne $name "huggingFaceToken") }}
            - {key: {{ $key | quote }}, path: {{ $name }}}
            {{- end }}
            {{- end }}
- name: secrets
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
{{- if .root.Values.peers.tlsSecret }}
- name: peers
  secret: {secretName: {{ .root.Values.peers.tlsSecret }}, defaultMode: 0440}
{{- end }}
{{- if .files }}
- name: files
  configMap: {name: {{ .files }}}
{{- end }}
{{- end }}

{{- define "sessile.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sessile.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* All of them look at the port for metrics, which listens before anything else: a process that waits for its database
     or loads its model lives and is not ready. The argument: seconds until then; a model is pulled before. */}}
{{- define "sessile.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div . 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "sessile.spread" -}}
{{- $selector := .selector }}
{{- range $key, $on := dict "topology.kubernetes.io/zone" .root.Values.topologySpread.zones "kubernetes.io/hostname" .root.Values.topologySpread.hosts }}
{{- if $on }}
- topologyKey: {{ $key }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- $selector | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sessile.podCommon" -}}
{{- with .root.Values.serviceAccount }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- include "sessile.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "sessile.spread" . }}
topologySpreadConstraints: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pod of a replica: dict "root" "pool" "of" (its values) "selector" "multi" (whether its volume is the pod's). */}}
{{- define "sessile.replicaSpec" -}}
{{- $root := .root }}
{{- $of := .of }}
{{- $image := include "sessile.image" (dict "root" $root "variant" $of.variant) }}
{{- include "sessile.podCommon" . }}
{{- with $of.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
# preStop drains (60 s at most), then SIGTERM drains what came in between (60 s at most), then the engine is closed.
terminationGracePeriodSeconds: 150
initContainers:
  {{- include "sessile.secretsContainer" (dict "root" $root "image" $image) | nindent 2 }}
containers:
  - name: replica
    image: {{ $image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- if .multi }}
    command: ["/bin/sh", "-c", {{ printf "%s && exec /opt/sessile/sessile replica" $of.multiNode.leaderSetup | quote }}]
    {{- else }}
    args: ["replica"]
    {{- end }}
    env:
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- include "sessile.env" $root | nindent 6 }}
      - name: SESSILE_PEER_HOST
        value: {{ ternary "::" "0.0.0.0" $root.Values.ipv6 | quote }}
      - name: SESSILE_PEER_PORT
        value: {{ int $root.Values.peers.port | quote }}
      - name: SESSILE_PEER_ADDRESS
        value: {{ printf (ternary "[$(POD_IP)]:%d" "$(POD_IP):%d" $root.Values.ipv6) (int $root.Values.peers.port) | quote }}
      - name: SESSILE_ENGINE
        value: {{ $of.engine }}
      - name: SESSILE_MODEL
        value: {{ $of.model | quote }}
      - name: SESSILE_MODEL_FOLDER
        value: /data/models
      - name: SESSILE_SLOTS
        value: {{ int $of.slots | quote }}
      - name: SESSILE_DATA
        value: /data
      - name: SESSILE_KV_DISK_MB
        value: {{ int $of.kv.diskMb | quote }}
      - name: SESSILE_KV_HOST_MB
        value: {{ int $of.kv.memoryMb | quote }}
      - name: SESSILE_KV_STAGING
        value: /dev/shm
      - name: HF_HOME
        value: /data/hub
      {{- with $root.Values.secret.keys.huggingFaceToken }}
      - name: HF_TOKEN
        valueFrom: {secretKeyRef: {name: {{ $root.Values.secret.name }}, key: {{ . | quote }}}}
      {{- end }}
      {{- range $name, $value := $of.settings }}
      - name: SESSILE_{{ upper $name }}
        value: {{ include "sessile.setting" $value | quote }}
      {{- end }}
      {{- with $of.extraEnv }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: peer, containerPort: {{ int $root.Values.peers.port }}}
      - {name: metrics, containerPort: 9464}
    {{- include "sessile.probes" 3600 | nindent 4 }}
    lifecycle:
      preStop:
        exec:
          command: ["/bin/sh", "-c", "exec /opt/sessile/sessile drain \"$SESSILE_NAME\""]
    securityContext: {{- include "sessile.containerSecurity" . | nindent 6 }}
    resources: {{- toYaml $of.resources | nindent 6 }}
    volumeMounts:
      {{- include "sessile.mounts" (dict "root" $root "files" $of.files) | nindent 6 }}
      - {name: data, mountPath: /data}
      - {name: staging, mountPath: /dev/shm}
      {{- if $of.modelVolume }}
      - {name: models, mountPath: /models, readOnly: true}
      {{- end }}
volumes:
  {{- include "sessile.volumes" (dict "root" $root "files" $of.files) | nindent 2 }}
  - name: staging
    emptyDir: {medium: Memory, sizeLimit: {{ int (add (int $of.kv.memoryMb) 1024) }}M}
  {{- if .multi }}
  - name: data
    emptyDir: {sizeLimit: {{ $of.kv.volumeSize }}}
  {{- end }}
  {{- if $of.modelVolume }}
  - name: models
    persistentVolumeClaim: {claimName: {{ $of.modelVolume }}, readOnly: true}
  {{- end }}
{{- end }}
